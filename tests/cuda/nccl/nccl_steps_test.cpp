// Tests the memory and the waits of steps with NCCL.

#include <catch2/catch.hpp>
#include <set>
#include <sstream>

#include "control.hpp"
#include "cuda/device/busy_stream.hpp"
#include "cuda/nccl/nccl_ranks.hpp"
#include "cuda/nccl/shared_nccl_comm.hpp"
#include "cuda/one_rank.hpp"
#include "optimizer/agreement.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

const Placement kR{PlacementKind::kReplicate, 0, 1}, kS{PlacementKind::kShard, 0, 1};
constexpr int64_t kSlackMs = 5000;  // allows for other programs on the machine

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

TEST_CASE("nccl steps: the creation connects the peers of all exchanges, and no step another one",
          "[nccl]") {
  // The case has owners in both replicas, and clips gradients by their norm.
  world::Case c = world::on_mesh({2, 2});
  c.params.push_back(world::matrix("a", {12, 8}, {kR, kS}));
  c.params.push_back(world::matrix("b", {8, 20}, {kR, kS}));
  c.params.push_back(world::matrix("c", {16, 16}, {kR, kS}));
  c.settings.groups = world::default_groups();
  c.settings.clip_norm = 1.0;
  struct Log {
    std::vector<std::string> creation, steps;
  };
  std::vector<Log> logs(4);
  fake_nccl::reset();
  on_world(c, nccl_over_fake, [&](world::Rank& rank) {
    const int number = rank.optimizer().comm().rank();
    Log& log = logs[static_cast<size_t>(number)];
    log.creation = fake_nccl::log(number);
    run_steps(rank, 0, 3);
    const auto all = fake_nccl::log(number);
    log.steps.assign(all.begin() + std::ssize(log.creation), all.end());
  });
  // Returns each "send 1" or "receive 2" once, without its size.
  const auto peers = [](const std::vector<std::string>& log) {
    std::set<std::string> out;
    for (const std::string& line : log) {
      std::istringstream words(line);
      std::string word, peer;
      while (words >> word)
        if ((word == "send" || word == "receive") && words >> peer) out.insert(word + " " + peer);
    }
    return out;
  };
  const auto reductions = [](const std::vector<std::string>& log) {
    std::set<std::string> out;
    for (const std::string& line : log)
      if (line.rfind("all_reduce", 0) == 0) out.insert(line);
    return out;
  };
  std::set<std::string> connected;
  for (const Log& log : logs) {
    REQUIRE(!log.steps.empty());
    CHECK(peers(log.creation) == peers(log.steps));
    for (const std::string& reduction : reductions(log.steps))
      CHECK(reductions(log.creation).count(reduction) == 1);
    connected.merge(peers(log.creation));
    // The creation sends one byte to each peer.
    std::istringstream words(log.creation.front());
    std::string word, bytes;
    while (words >> word)
      if (word == "x" && words >> bytes) CHECK(bytes == "1");
  }
  CHECK(connected.size() >= 4);
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
    c.settings.chunk_bytes = 128;  // each chunk contains one matrix
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
    // The abort waits for the operations that NCCL has accepted. It also frees memory, so it waits
    // for the GPU.
    CHECK(fake_nccl::ending() == 1);
    CHECK(took < std::chrono::milliseconds(300 + cuda::kTeardownTimeoutMs + kSlackMs));
    theirs.end();
    while (fake_nccl::ending() > 0) std::this_thread::yield();
    CHECK(fake_nccl::counts().aborted == 1);
  }
}
