// Tests the memory and the waits of steps of one rank over NCCL.

#include <catch2/catch.hpp>

#include "control.hpp"
#include "cuda/device/busy_stream.hpp"
#include "cuda/nccl/nccl_ranks.hpp"
#include "cuda/nccl/shared_nccl_comm.hpp"
#include "cuda/one_rank.hpp"
#include "optimizer/agreement.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

constexpr int64_t kSlackMs = 5000;  // for a machine that has other work

struct Alone : OneRank {
  explicit Alone(const world::Case& c)
      : OneRank(c, [](std::unique_ptr<Transport> transport) {
          fake_nccl::reset();
          return nccl_over_fake(std::move(transport));
        }) {}
};

world::Case stack_of(int64_t matrices) {
  world::Case c;
  c.params = {world::matrix("stack", {matrices, 2, 2}, {})};
  c.params[0].view = View::kStack;
  c.settings.groups = world::default_groups();
  return c;
}

}  // namespace

TEST_CASE("nccl steps: none allocates memory, not even for its norm and statistics", "[nccl]") {
  world::Case c =
      stack_of(400);  // the statistics are larger than the communicator's first scratch memory
  c.settings.health_every = 1;
  c.settings.clip_norm = 1.0;
  Alone alone(c);
  const int64_t calls = slow_calls();
  CHECK_FALSE(alone.step(nullptr));
  CHECK(slow_calls() == calls);
  check_rules();
}

TEST_CASE("nccl steps: after a caller's stream that does not end few launches are enqueued",
          "[nccl]") {
  const auto enqueued = [](int matrices, bool graphs) {
    world::Case c;
    c.settings.graphs = graphs;
    for (int i = 0; i < matrices; ++i)
      c.params.push_back(world::matrix("m" + std::to_string(i), {8, 8}, {}));
    c.settings.groups = world::default_groups();
    c.settings.device = DeviceKind::kCuda;
    c.settings.timeout_ms = 300;
    c.settings.chunk_bytes = 128;  // each chunk has one matrix
    BusyStream theirs;
    Alone alone(c);
    theirs.work();
    const int64_t before = emulator::pending();
    CHECK(says(alone.step(theirs.handle), Status::kTimeout, "the work on the caller's stream"));
    const int64_t after = emulator::pending();
    theirs.end();
    while (fake_nccl::ending() > 0) std::this_thread::yield();
    return after - before;
  };
  for (const bool graphs : {false, true}) {
    INFO((graphs ? "graphs" : "launches"));
    for (const int matrices : {40, 80}) {
      const int64_t entries = enqueued(matrices, graphs);
      CHECK((entries > 0 && entries < 1000));
    }
  }
}

TEST_CASE("nccl steps: after a caller's stream that does not end they end at the timeout",
          "[nccl]") {
  for (const bool serial : {false, true}) {
    INFO((serial ? "one stage at a time" : "several stages at a time"));
    world::Case c = stack_of(3);
    c.settings.device = DeviceKind::kCuda;
    c.settings.timeout_ms = 300;
    c.settings.serial = serial;
    BusyStream theirs;
    Alone alone(c);
    const auto before = alone.step(theirs.handle);
    CHECK((before ? before->message() : "") == "");
    theirs.work();
    const auto start = Deadline::Clock::now();
    const auto error = alone.step(theirs.handle);
    const auto took = Deadline::Clock::now() - start;
    CHECK(says(error, Status::kTimeout, "the work on the caller's stream"));
    // The abort waits for the operations that NCCL has accepted, and for the GPU, to free its
    // memory.
    CHECK(fake_nccl::ending() == 1);
    CHECK(took < std::chrono::milliseconds(300 + cuda::kTeardownTimeoutMs + kSlackMs));
    theirs.end();
    while (fake_nccl::ending() > 0) std::this_thread::yield();
    CHECK(fake_nccl::counts().aborted == 1);
  }
}
