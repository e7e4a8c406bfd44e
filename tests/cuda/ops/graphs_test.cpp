// Work that is recorded and replayed, as the emulated GPU sees it.

#include <catch2/catch.hpp>

#include "algo/newton_schulz.hpp"
#include "control.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/machine.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

std::unique_ptr<Device> recording_device(SymmetricProvider provider = SymmetricProvider::kSm90) {
  return make_cuda_device(0, {.naive_products = true, .symmetric = provider, .graphs = true});
}

/// Newton-Schulz of two matrices 40 x 100 on a machine.
struct Iteration {
  explicit Iteration(Machine& on, Form form) : machine(on) {
    settings =
        make_newton_schulz(CoefficientFamily::kPolarExpress, CoefficientSettings(), DType::kBF16);
    const auto steps = static_cast<int>(settings.list.steps.size());
    method =
        form == Form::kGram ? Method{form, steps, settings.gram_restarts} : Method{form, steps, {}};
    raw = {nullptr, DType::kBF16, 40, 100, machine.ops().leading_dimension(100, DType::kBF16), 2,
           0};
    raw.stride = raw.rows * raw.ld;
    raw.data = machine.put(values(1, DType::kBF16, 2 * raw.stride));
    space = machine.put(Bytes(
        static_cast<size_t>(newton_schulz_workspace(machine.ops(), settings, method, 40, 100, 2))));
    findings = machine.put_one(Findings{});
    reserve(machine.ops(), settings, method, 40, 100);
  }
  void enqueue() {
    result = orthogonalize(machine.ops(), machine.on(), settings, method, raw, space, findings);
  }
  void new_values(uint64_t seed) {
    const Bytes bytes = values(seed, DType::kBF16, 2 * raw.stride);
    const auto staging = Buffer::shared(*machine.device, std::ssize(bytes));
    std::memcpy(staging.data(), bytes.data(), bytes.size());
    machine.ops().copy(machine.on(), raw.data, staging.data(), std::ssize(bytes));
    machine.finish();
  }
  Bytes got() {
    machine.finish();
    return machine.get(static_cast<const unsigned char*>(result.data), 2 * 2 * result.stride);
  }

  Machine& machine;
  NewtonSchulz settings;
  Method method;
  MatrixBatch raw, result;
  unsigned char* space = nullptr;
  Findings* findings = nullptr;
};

}  // namespace

TEST_CASE("graphs: recorded work runs at each replay, and not before", "[emulated]") {
  Machine machine(recording_device());
  Recorder* const recorder = recorder_of(*machine.device);
  REQUIRE(recorder);
  const Buffer memory(*machine.device, 64);
  machine.ops().fill(machine.on(), memory.data(), 1, 64);
  const auto recording = record_work(*recorder, machine.on(), [&] {
    machine.ops().fill(machine.on(), memory.data(), 2, 64);
    machine.ops().fill(machine.on(), memory.data(), 3, 32);
  });
  const auto bytes = [&] { return machine.get(memory.as<unsigned char>(), 64); };
  CHECK(bytes() == Bytes(64, 1));
  Bytes expected(64, 2);
  std::fill_n(expected.begin(), 32, static_cast<unsigned char>(3));
  for (int i = 0; i < 2; ++i) {
    machine.ops().fill(machine.on(), memory.data(), 9, 64);
    recorder->replay(machine.on(), *recording);
    CHECK(bytes() == expected);
  }
}

TEST_CASE("graphs: what cannot be recorded is an error, and the stream goes on", "[emulated]") {
  Machine machine(recording_device());
  Recorder* const recorder = recorder_of(*machine.device);
  const auto event = machine.device->create_event();
  const Buffer memory(*machine.device, 64);
  CHECK_THROWS_AS(
      record_work(*recorder, machine.on(), [&] { machine.device->record(*event, machine.on()); }),
      Error);
  CHECK_THROWS_AS(record_work(*recorder, machine.on(), [&] { machine.device->allocate(64); }),
                  Error);
  machine.ops().fill(machine.on(), memory.data(), 5, 64);
  CHECK(machine.get(memory.as<unsigned char>(), 64) == Bytes(64, 5));
}

TEST_CASE("graphs: a device that was not asked to record does not", "[emulated]") {
  CHECK(recorder_of(*make_device()) == nullptr);
  CHECK(recorder_of(*make_host()) == nullptr);
}

TEST_CASE("graphs: Newton-Schulz replayed has the bits of the eager one, on other values too",
          "[emulated]") {
  for (const SymmetricProvider provider : {SymmetricProvider::kSm80, SymmetricProvider::kSm90}) {
    for (const Form form : {Form::kStandard, Form::kGram}) {
      Machine machine(recording_device(provider));
      Recorder* const recorder = recorder_of(*machine.device);
      Iteration eager(machine, form), captured(machine, form);
      eager.enqueue();
      const int64_t launches = emulator::early_launches();
      eager.enqueue();
      const int64_t early = emulator::early_launches() - launches;
      const Bytes first = eager.got();
      const int64_t graphs = emulator::graph_launches();
      const auto recording = record_work(*recorder, machine.on(), [&] { captured.enqueue(); });
      // The same launches, begun early or not; nothing that waits or allocates.
      CHECK(emulator::early_launches() - launches == 2 * early);
      CHECK((early > 0) == (provider == SymmetricProvider::kSm90));
      const int64_t slow = emulator::slow_calls();
      recorder->replay(machine.on(), *recording);
      CHECK(emulator::slow_calls() == slow);
      CHECK(emulator::graph_launches() == graphs + 1);
      CHECK(difference(captured.got(), first) == -1);
      for (Iteration* one : {&eager, &captured}) one->new_values(2);
      eager.enqueue();
      recorder->replay(machine.on(), *recording);
      const Bytes second = eager.got();
      CHECK(difference(captured.got(), second) == -1);
      CHECK(difference(first, second) != -1);
    }
  }
}
