// Tests ranks that are threads: their messages if the GPU does not complete a copy in time, and the
// messages of a single rank. These cases need the emulator, because a test can stop the emulator's
// streams.

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "backend/cuda_comm.hpp"
#include "comm/transport_bootstrap.hpp"
#include "control.hpp"
#include "cuda/nccl/worlds.hpp"

using namespace muonrt;
using namespace cuda_test;
using transport_test::on_ranks;

namespace {
// Timeouts in milliseconds. The short timeout expires while a GPU is stopped. It is long enough for
// another rank's thread to start its operation, even on a busy machine.
constexpr int64_t kShort = 2000, kLong = 60000;

}  // namespace

TEST_CASE("direct copy: a sender keeps its memory until a slow copy has ended", "[emulated]") {
  // The GPU stops before rank 1 copies from rank 0, and continues long after the timeout of rank 0.
  std::thread release;
  ThreadFaults faults;
  faults.before_delivery = [&](const ThreadMessage& m) {
    if (m.to != 1 || m.kind != OperationKind::kExchange) return;
    emulator::hold(true);
    release = std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(2 * kShort));
      emulator::hold(false);
    });
  };
  ThreadGroup group(2, faults);
  std::atomic<int64_t> pending_copies = -1;
  const auto errors = on_ranks(2, [&](int rank) {
    const auto comm = make_staged_comm(make_bootstrap(group.transport(rank)), 0);
    comm->set_timeout_ms(kLong);
    Machine machine(world_device());
    const auto memory = machine.put(Bytes(1000, static_cast<unsigned char>(7 + rank)));
    char all[2];
    comm->allgather("", all, 1);
    comm->set_timeout_ms(rank == 0 ? kShort : kLong);
    if (rank == 0) {
      const SendTo send{1, memory, 1000};
      try {
        comm->exchange(machine.on(), {&send, 1}, {});
      } catch (...) {
        pending_copies = emulator::pending();
        throw;
      }
    } else {
      const ReceiveFrom receive{0, memory, 1000};
      comm->exchange(machine.on(), {}, {&receive, 1});
      machine.finish();
      if (machine.get(memory, 1000) != Bytes(1000, 7)) throw std::runtime_error("other bytes");
    }
  });
  REQUIRE(release.joinable());
  release.join();
  REQUIRE(errors[0]);
  CHECK(errors[0]->status() == Status::kTimeout);
  CHECK(errors[0]->message().find("rank 1 did not finish copying a message") != std::string::npos);
  CHECK(pending_copies == 0);
  CHECK_FALSE(errors[1]);
}

TEST_CASE("direct copy: a copy that the GPU does not end is reported with the timeout",
          "[emulated]") {
  // The receiver stops waiting several seconds after the timeout.
  ThreadFaults faults;
  faults.before_delivery = [&](const ThreadMessage& m) {
    if (m.to == 1 && m.kind == OperationKind::kExchange) emulator::hold(true);
  };
  ThreadGroup group(2, faults);
  const auto errors = on_ranks(2, [&](int rank) {
    const auto comm = make_staged_comm(make_bootstrap(group.transport(rank)), 0);
    Machine machine(world_device());
    const auto memory = machine.put(Bytes(1000));
    char all[2];
    comm->allgather("", all, 1);
    comm->set_timeout_ms(rank == 0 ? kLong : kShort);
    const SendTo send{1, memory, 1000};
    const ReceiveFrom receive{0, memory, 1000};
    try {
      if (rank == 0) {
        comm->exchange(machine.on(), {&send, 1}, {});
        comm->exchange(machine.on(), {}, {});
        comm->allgather("", all, 1);
      } else {
        comm->exchange(machine.on(), {}, {&receive, 1});
      }
    } catch (...) {
      emulator::hold(false);
      machine.finish();
      throw;
    }
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(error->status() == Status::kTimeout);
    CHECK(error->message().find("work on CUDA device 0 for a message did not end") !=
          std::string::npos);
  }
}

TEST_CASE("direct copy: a single rank waits for nothing, and reduces nothing after an abort",
          "[emulated]") {
  ThreadGroup group(1);
  const auto comm = make_staged_comm(make_bootstrap(group.transport(0)), 0);
  comm->set_timeout_ms(kShort);  // if the exchange waited, this timeout would end the wait
  Machine machine(world_device());
  const std::vector<int64_t> sent = {3, -4, 5};
  int64_t* const from = machine.put(sent);
  int64_t* const to = machine.put(std::vector<int64_t>(3));
  int64_t* const sum = machine.put(std::vector<int64_t>(3));
  float* const most = machine.put(std::vector<float>{-1.0f, 2.5f});
  machine.finish();
  const SendTo send{0, from, 24};
  const ReceiveFrom receive{0, to, 24};
  emulator::hold(true);
  comm->exchange(machine.on(), {&send, 1}, {&receive, 1});
  CHECK(emulator::pending() > 0);
  emulator::hold(false);
  comm->reduce_sum(machine.on(), to, sum, 3);
  comm->reduce_max(machine.on(), most, most, 2);
  machine.finish();
  CHECK(machine.get(to, 3) == sent);
  CHECK(machine.get(sum, 3) == sent);
  CHECK(machine.get(most, 2) == std::vector<float>{-1.0f, 2.5f});
  int64_t* const votes = machine.put(std::vector<int64_t>{-7, -7, -7});
  machine.finish();
  emulator::hold(true);
  comm->reduce_sum(machine.on(), from, votes, 3);
  CHECK(emulator::pending() > 0);
  comm->abort(Status::kTimeout, "the step did not end");
  emulator::hold(false);
  machine.finish();
  CHECK(machine.get(votes, 3) == std::vector<int64_t>{-7, -7, -7});
  CHECK_THROWS_AS(comm->exchange(machine.on(), {&send, 1}, {&receive, 1}),
                  Error);  // the communicator has already ended
}
