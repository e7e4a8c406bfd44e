// Tests work that is captured as a graph and then launched, on the emulated GPU.

#include <catch2/catch.hpp>

#include "control.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/machine.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

std::unique_ptr<Device> recording_device() {
  return make_cuda_device(
      0, {.naive_products = true, .symmetric = SymmetricProvider::kSm90, .graphs = true});
}

}  // namespace

TEST_CASE("graphs: captured work runs at each launch of the graph, and not before", "[emulated]") {
  Machine machine(recording_device());
  GraphCapture* const recorder = graph_capture_of(*machine.device);
  REQUIRE(recorder);
  const Buffer memory(*machine.device, 64);
  machine.ops().fill(machine.on(), memory.data(), 1, 64);
  const auto recording = capture_graph(*recorder, machine.on(), [&] {
    machine.ops().fill(machine.on(), memory.data(), 2, 64);
    machine.ops().fill(machine.on(), memory.data(), 3, 32);
  });
  const auto bytes = [&] { return machine.get(memory.as<unsigned char>(), 64); };
  CHECK(bytes() == Bytes(64, 1));
  Bytes expected(64, 2);
  std::fill_n(expected.begin(), 32, static_cast<unsigned char>(3));
  for (int i = 0; i < 2; ++i) {
    machine.ops().fill(machine.on(), memory.data(), 9, 64);
    recorder->launch_graph(machine.on(), *recording);
    CHECK(bytes() == expected);
  }
}

TEST_CASE("graphs: work that cannot be captured is an error, and the stream continues",
          "[emulated]") {
  Machine machine(recording_device());
  GraphCapture* const recorder = graph_capture_of(*machine.device);
  const auto event = machine.device->create_event();
  const Buffer memory(*machine.device, 64);
  CHECK_THROWS_AS(
      capture_graph(*recorder, machine.on(), [&] { machine.device->record(*event, machine.on()); }),
      Error);
  CHECK_THROWS_AS(capture_graph(*recorder, machine.on(), [&] { machine.device->allocate(64); }),
                  Error);
  machine.ops().fill(machine.on(), memory.data(), 5, 64);
  CHECK(machine.get(memory.as<unsigned char>(), 64) == Bytes(64, 5));
}

TEST_CASE("graphs: a device without the option captures nothing", "[emulated]") {
  CHECK(graph_capture_of(*make_device()) == nullptr);
  CHECK(graph_capture_of(*make_host()) == nullptr);
}

TEST_CASE(
    "graphs: a product in a graph is bitwise identical to a direct one, with other values, too",
    "[emulated]") {
  Machine machine(recording_device());
  GraphCapture* const recorder = graph_capture_of(*machine.device);
  MatrixBatch x{nullptr, DType::kBF16, 40, 40, 64, 2, 40 * 64}, eager = x, replayed = x;
  const int64_t bytes = 2 * 2 * x.stride;
  auto* const in = machine.put(values(1, DType::kBF16, 2 * x.stride));
  x.data = in;
  eager.data = machine.put(Bytes(static_cast<size_t>(bytes)));
  replayed.data = machine.put(Bytes(static_cast<size_t>(bytes)));
  const auto multiply = [&](const MatrixBatch& out) {
    Product product;
    product.a = product.b = x;
    product.c = out;
    product.transpose_b = product.symmetric = true;
    machine.ops().multiply(machine.on(), product);
  };
  const auto result = [&](const MatrixBatch& of) {
    return machine.get(static_cast<const unsigned char*>(of.data), bytes);
  };
  multiply(eager);
  const Bytes first = result(eager);
  const int64_t early = emulator::early_launches(), graphs = emulator::graph_launches();
  const auto recording = capture_graph(*recorder, machine.on(), [&] { multiply(replayed); });
  CHECK(emulator::early_launches() == early + 1);
  const int64_t slow = emulator::slow_calls();
  recorder->launch_graph(machine.on(), *recording);
  CHECK(emulator::slow_calls() == slow);
  CHECK(emulator::graph_launches() == graphs + 1);
  CHECK(difference(result(replayed), first) == -1);
  machine.ops().copy(machine.on(), in, machine.put(values(2, DType::kBF16, 2 * x.stride)), bytes);
  multiply(eager);
  recorder->launch_graph(machine.on(), *recording);
  CHECK(difference(result(replayed), result(eager)) == -1);
  CHECK(difference(result(eager), first) != -1);
}
