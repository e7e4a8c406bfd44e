// Tests how communicators end while a caller's stream is hanging. NCCL does not complete an abort
// before the stream has reached the enqueued operations, and freeing memory waits until the GPU is
// idle.

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "cuda/device/busy_stream.hpp"
#include "cuda/device/exhausted_memory_cache.hpp"
#include "cuda/nccl/nccl_caller_comm.hpp"
#include "cuda/nccl/shared_nccl_comm.hpp"
#include "optimizer/agreement.hpp"

using namespace muonrt;
using namespace cuda_test;
using cuda::SharedNcclComm;

namespace {

constexpr int64_t kSlackMs = 5000;  // allows for other programs on the machine

class Stopwatch {
 public:
  bool over(int64_t ms) const {
    return Deadline::Clock::now() - start_ > std::chrono::milliseconds(ms + kSlackMs);
  }

 private:
  const Deadline::Clock::time_point start_ = Deadline::Clock::now();
};

void await_ends() {
  while (fake_nccl::ending() > 0) std::this_thread::yield();
}

/// A machine, and a caller's stream whose work does not end.
struct Fixture {
  Machine machine{(fake_nccl::reset(), world_device())};
  BusyStream caller;
  int64_t* const value = machine.put(std::vector<int64_t>{5});

  /// Makes the machine's stream wait for the work that is now on the caller's stream.
  void follow() {
    caller.work();
    machine.device->wait_caller_stream(machine.on(), caller.handle, "test");
  }
  void sum(Comm& comm) { comm.reduce_sum(machine.on(), value, value, 1); }
  void end_caller_work() {
    caller.end();
    machine.finish();
  }
};

}  // namespace

TEST_CASE("nccl abort: ending a communicator never waits for a stream, and NCCL ends later",
          "[nccl]") {
  struct Row {
    const char* what;
    std::function<void(Fixture&, Comm&)> before;
    int64_t most_ms;
    int aborted, destroyed;  // a value of -1 is not checked
  };
  const auto enqueue = [](Fixture& fixture, Comm& comm) {
    fixture.follow();
    fixture.sum(comm);
  };
  const auto abort = [&](Fixture& fixture, Comm& comm) {
    enqueue(fixture, comm);
    for (int i = 0; i < 3; ++i) comm.abort(Status::kAborted, "enough");
    CHECK(says(capture_error([&] { fixture.sum(comm); }), Status::kAborted, "enough"));
  };
  const auto time_out = [&](Fixture& fixture, Comm& comm) {
    comm.set_timeout_ms(100);
    enqueue(fixture, comm);
    while (!comm.error()) std::this_thread::yield();
    CHECK(says(comm.error(), Status::kTimeout, "reduce_sum #0 on rank 0"));
  };
  const auto without_work = [](Fixture& fixture, Comm& comm) {
    fixture.sum(comm);
    fixture.machine.finish();
    fixture.caller.work();
  };
  for (const Row& row :
       {Row{"aborted several times", abort, cuda::kTeardownTimeoutMs, 1, -1},
        {"destroyed without an error", enqueue, 2000 + cuda::kTeardownTimeoutMs, -1, -1},
        {"ended by its watchdog", time_out, cuda::kTeardownTimeoutMs, 1, -1},
        {"without work", without_work, cuda::kTeardownTimeoutMs, -1, 1}}) {
    INFO(row.what);
    Fixture fixture;
    ThreadGroup group(1);
    auto comm = nccl_over_fake(group.transport(0));
    const Stopwatch stopwatch;
    row.before(fixture, *comm);
    comm.reset();
    CHECK_FALSE(stopwatch.over(row.most_ms));
    CHECK(fake_nccl::ending() == 1);  // NCCL waits for its stream, or to free its own memory
    CHECK(fake_nccl::counts().aborted == 0);
    CHECK(fake_nccl::counts().destroyed == 0);
    fixture.end_caller_work();
    CHECK(fixture.machine.get_one(fixture.value) == 5);
    await_ends();
    if (row.aborted >= 0) CHECK(fake_nccl::counts().aborted == row.aborted);
    if (row.destroyed >= 0) CHECK(fake_nccl::counts().destroyed == row.destroyed);
    check_rules();
  }
}

TEST_CASE("nccl abort: memory that enqueued work uses is reused after the work has run", "[nccl]") {
  Fixture fixture;
  ExhaustedMemoryCache none;
  ThreadGroup group(1);
  auto comm = nccl_over_fake(group.transport(0));
  fixture.follow();
  fixture.sum(*comm);
  comm.reset();
  CHECK(none.left() == 0);
  fixture.end_caller_work();
  int64_t blocks = 0;
  while (blocks < 2) blocks += none.left();
  CHECK(blocks == 2);
  check_rules();
}

TEST_CASE("nccl abort: a flag that enqueued work reads is not reused", "[nccl]") {
  Fixture fixture;
  ThreadGroup group(1);
  auto comm = nccl_over_fake(group.transport(0));
  int64_t* const entered = fixture.machine.put(std::vector<int64_t>{1});
  fixture.sum(*comm);
  fixture.machine.finish();
  comm->abort(Status::kAborted, "enough");
  await_ends();  // ends immediately, because NCCL has no enqueued operations
  fixture.follow();
  comm->clear_if_aborted(fixture.machine.on(), entered);
  comm.reset();
  std::vector<std::shared_ptr<SharedNcclComm>> others;
  for (int i = 0; i < 8; ++i) others.push_back(std::make_shared<SharedNcclComm>(0));
  fixture.end_caller_work();
  CHECK(fixture.machine.get_one(entered) == 0);  // the aborted communicator's flag is still set
  check_rules();
}

TEST_CASE(
    "nccl abort: communicators that share a borrowed handle do not wait for each other's stream",
    "[nccl]") {
  Fixture fixture;
  ThreadGroup group(1);
  CallerNcclComm own(new_id(), 1, 0, true);
  own.lost = true;
  NcclOptions options;
  options.from = own.handle();
  options.borrow = true;
  auto first = over_fake(group.transport(0), options);
  auto second = first->duplicate();
  fixture.follow();
  fixture.sum(*second);
  const Stopwatch stopwatch;
  first->abort(Status::kAborted, "enough");
  first.reset();
  second->abort(Status::kTimeout, "timed out");
  CHECK(says(second->error(), Status::kAborted, "enough"));
  CHECK_THROWS_WITH(SharedNcclComm::for_borrowed_handle(own.handle(), 0),
                    "enough");  // the abort has not ended
  CHECK_FALSE(stopwatch.over(cuda::kTeardownTimeoutMs));
  fixture.end_caller_work();
  await_ends();
  second->abort(Status::kAborted, "again");
  second.reset();
  CHECK(fake_nccl::counts().aborted == 1);
  check_rules();
}
