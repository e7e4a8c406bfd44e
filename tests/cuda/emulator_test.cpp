// Tests that need an emulated GPU: delayed work, failures, and counts of the work that has run.

#include <bit>
#include <catch2/catch.hpp>
#include <chrono>
#include <random>
#include <thread>

#include "control.hpp"
#include "cuda/device/abi_rig.hpp"
#include "cuda/device/busy_stream.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/kernels/kernels.hpp"
#include "cuda/machine.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

struct Held {
  Held() { emulator::hold(true); }
  ~Held() { emulator::hold(false); }
};

}  // namespace

TEST_CASE("emulated cuda: a wait ends with TIMEOUT after its timeout", "[emulated]") {
  Machine machine(make_device());
  const Buffer memory(*machine.device, 64);
  const auto event = machine.device->create_event();
  machine.ops().fill(machine.on(), memory.data(), 0, 64);
  machine.device->record(*event, machine.on());
  {
    const Held held;
    try {
      machine.device->synchronize(*event, Deadline::in_ms(5));
      FAIL("it ended");
    } catch (const Error& e) {
      CHECK(e.status() == Status::kTimeout);
    }
  }
  CHECK_NOTHROW(machine.finish());
}

TEST_CASE("emulated cuda: ops and events only enqueue", "[emulated]") {
  Machine machine(make_device());
  const Buffer memory(*machine.device, 4096), shared = Buffer::shared(*machine.device, 4096);
  const auto event = machine.device->create_event();
  const Held held;
  const int64_t before = emulator::pending();
  machine.ops().fill(machine.on(), memory.data(), 1, 4096);
  machine.ops().copy(machine.on(), shared.data(), memory.data(), 4096);
  machine.ops().copy(machine.on(), shared.data(), shared.as<char>() + 8, 8);
  machine.device->timestamp(machine.on(), shared.as<int64_t>());
  machine.device->record(*event, machine.on());
  machine.device->wait(machine.on(), *event);
  CHECK(emulator::pending() == before + 5);
}

TEST_CASE("emulated cuda: the error of a kernel is latched and reported", "[emulated]") {
  Machine machine(make_device());
  const Buffer findings(*machine.device, sizeof(Findings)), vote(*machine.device, sizeof(Vote));
  const auto event = machine.device->create_event();
  emulator::fail_next_kernel();
  machine.ops().cast_vote(machine.on(), vote.as<Vote>(), findings.as<Findings>(), 1, 1, true);
  machine.device->record(*event, machine.on());
  CHECK_NOTHROW(machine.device->synchronize(*event, Deadline::in_ms(60000)));
  const auto error = machine.device->error();
  REQUIRE(error.has_value());
  CHECK(error->status() == Status::kDevice);
  CHECK(error->message().find("cudaErrorLaunchFailure") != std::string::npos);
  CHECK_THROWS_AS(machine.ops().fill(machine.on(), vote.data(), 0, 8), Error);
  emulator::forget_failure();
  machine.device->clear_error();
  CHECK_FALSE(machine.device->error().has_value());
  CHECK_NOTHROW(machine.finish());
}

/// Returns parts of a gradient for one thread block. Each part contains one of these: the largest
/// mantissas (more of them than a lane can add before it must flush its sum); magnitudes that
/// change from part to part; every exponent; infinities and NaN; zeros.
std::vector<float> gradient_of_sizes() {
  std::mt19937 random(3);
  const auto parts = [](size_t n) { return n * 8192; };
  std::vector<float> grad(parts(20) + 13, 0.0f);
  for (size_t i = 0; i < grad.size(); ++i) {
    const auto bits = static_cast<uint32_t>(random());
    const auto part = static_cast<uint32_t>(i / 8192);
    uint32_t of_element = bits;
    if (i < parts(9)) {
      of_element = 0x3fffffffu;
    } else if (i < parts(16)) {
      of_element = (bits & 0x807fffffu) | (10 * (part - 8) + bits % 7) << 23;
    } else if (i >= parts(18)) {
      of_element = bits % 3 ? bits & 0x80ffffffu : 0;
    }
    grad[i] = std::bit_cast<float>(of_element);
  }
  return grad;
}

TEST_CASE("emulated cuda: the sum of squares of one thread block is exact for all magnitudes",
          "[emulated]") {
  const std::vector<float> grad = gradient_of_sizes();
  const auto count = std::ssize(grad);
  ParamView view;
  view.numel = count;
  std::vector<int64_t> expected(kNormWords);
  for (const float x : grad) {
    const SquareTerm term = square_term(x);
    expected[static_cast<size_t>(term.word)] += term.low;
    expected[static_cast<size_t>(term.word) + 1] += term.high;
  }
  Machine machine(make_device());
  auto* list = machine.put_one(int32_t{0});
  for (const int64_t offset : {0, 4}) {  // offset in bytes
    view.grad = machine.put(grad, offset);
    auto* sums = machine.put(std::vector<int64_t>(kNormWords));
    cuda::sum_squares(list, 1, machine.put_one(view), sums, 1, cuda::handle_of(machine.on()));
    machine.finish();
    CHECK((machine.get(sums, kNormWords) == expected));
  }
}

TEST_CASE("emulated cuda: tallies of magnitudes near the end of a limb are exact", "[emulated]") {
  std::mt19937 random(4);
  constexpr int64_t kRows = 70, kCols = 200;
  // These exponents are the first or last exponents of a limb.
  for (const uint32_t exponent : {0u, 17u, 113u, 241u}) {
    CAPTURE(exponent);
    std::vector<float> x(kRows * kCols);
    Tally expected;
    for (float& value : x) {
      const auto bits = static_cast<uint32_t>(random());
      const uint32_t of_element = exponent + (bits % 100 ? bits % 3 : bits % 13);
      value = std::bit_cast<float>(bits % 11 ? (bits & 0x807fffffu) | of_element << 23 : 0u);
      const LimbTerm term = limb_term(value);
      expected.limbs[term.limb] += term.low;
      expected.limbs[term.limb + 1] += term.middle;
      expected.limbs[term.limb + 2] += term.high;
      expected.largest =
          std::max<int64_t>(expected.largest, std::bit_cast<uint32_t>(value) & 0x7fffffffu);
    }
    Machine machine(make_device());
    auto* tallies = machine.put_one(Tally{});
    machine.ops().tally(machine.on(), {machine.put(x), DType::kF32, kRows, kCols, kCols, 1, 0},
                        nullptr, tallies);
    machine.finish();
    const Tally tally = machine.get_one(tallies);
    CHECK(std::equal(tally.limbs, tally.limbs + kTallyLimbs, expected.limbs));
    CHECK(tally.largest == expected.largest);
    CHECK(tally.nonfinite == 0);
  }
}

TEST_CASE(
    "emulated cuda: a step that a peer ends returns after the caller's stream no longer uses the "
    "buffers",
    "[emulated]") {
  BusyStream theirs;
  AbiRig rig;
  rig.options.timeout_ms = 60000;
  ok(rig.create());
  theirs.work();
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    muonrt_comm_abort(rig.comm, MUONRT_ERROR_TIMEOUT, "exchange #3 did not end");
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    theirs.end();
  });
  CHECK(rig.step(theirs.handle) == MUONRT_ERROR_TIMEOUT);
  CHECK(theirs.has_ended());
  CHECK(emulator::pending() == 0);
  CHECK(std::string(muonrt_get_last_error()).find("exchange #3 did not end") != std::string::npos);
  other.join();
}

TEST_CASE("emulated cuda: the device that is current before a call is current after it",
          "[emulated]") {
  cudaSetDevice(1);
  Machine machine(make_device());  // uses device 0
  machine.finish();
  int current = -1;
  cudaGetDevice(&current);
  CHECK(current == 1);
  const auto device = make_device(true, 1);
  CHECK_FALSE(device->reaches(Buffer(*machine.device, 64).data()));
  cudaSetDevice(0);
}
