// Aborts that NCCL does not end, since a stream does not come to what NCCL has enqueued there.

#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <thread>

#include "cuda/busy_stream.hpp"
#include "cuda/nccl_shared.hpp"
#include "cuda/nccl_theirs.hpp"
#include "optimizer/agreement.hpp"

using namespace muonrt;
using namespace cuda_test;
using cuda::NcclShared;
using cuda::RawMemory;

namespace {

constexpr int64_t kSlackMs = 5000;  // of a machine that has other work

class Watch {
 public:
  bool over(int64_t ms) const {
    return Deadline::Clock::now() - start_ > std::chrono::milliseconds(ms + kSlackMs);
  }

 private:
  const Deadline::Clock::time_point start_ = Deadline::Clock::now();
};

void await_aborts() {
  while (fake_nccl::aborting() > 0) std::this_thread::yield();
}

/// The machine's stream waits for what `theirs` has now.
void follow(Machine& machine, BusyStream& theirs) {
  theirs.work();
  machine.device->join(machine.on(), theirs.handle, "test");
}

bool there(const void* memory) {
  cudaPointerAttributes attributes = {};
  const cudaError_t asked = cudaPointerGetAttributes(&attributes, memory);
  cudaGetLastError();
  return asked == cudaSuccess && attributes.type != cudaMemoryTypeUnregistered;
}

}  // namespace

TEST_CASE("nccl abort: one that hangs ends when the stream goes on, in a communicator long gone",
          "[nccl]") {
  fake_nccl::reset();
  ThreadGroup group(1);
  Machine machine(world_device());
  BusyStream theirs;
  auto* const value = machine.put(std::vector<int64_t>{5});
  auto comm = plain(group.transport(0));
  follow(machine, theirs);
  comm->reduce_sum(machine.on(), value, value, 1);
  const Watch watch;
  for (int i = 0; i < 3; ++i) comm->abort(Status::kAborted, "enough");
  CHECK(says(error_of([&] { comm->reduce_sum(machine.on(), value, value, 1); }), Status::kAborted,
             "enough"));
  comm.reset();
  CHECK_FALSE(watch.over(cuda::kAbortMs));  // all those waits are one
  CHECK(fake_nccl::aborting() == 1);
  CHECK(fake_nccl::counts().aborted == 0);
  theirs.ended = true;
  machine.finish();
  CHECK(machine.get_one(value) == 5);
  await_aborts();
  CHECK(fake_nccl::counts().aborted == 1);
  check_rules();
}

TEST_CASE("nccl abort: a communicator destroyed without an error does not wait for a stream either",
          "[nccl]") {
  fake_nccl::reset();
  ThreadGroup group(1);
  Machine machine(world_device());
  BusyStream theirs;
  auto* const value = machine.put(std::vector<int64_t>{5});
  auto comm = plain(group.transport(0));
  follow(machine, theirs);
  comm->reduce_sum(machine.on(), value, value, 1);
  const Watch watch;
  comm.reset();
  CHECK_FALSE(watch.over(2000 + cuda::kAbortMs));
  CHECK(fake_nccl::aborting() == 1);
  theirs.ended = true;
  machine.finish();
  CHECK(machine.get_one(value) == 5);
  await_aborts();
  check_rules();
}

TEST_CASE("nccl abort: a watch that ends an operation is joined at once", "[nccl]") {
  fake_nccl::reset();
  ThreadGroup group(1);
  Machine machine(world_device());
  BusyStream theirs;
  auto* const value = machine.put(std::vector<int64_t>{5});
  auto comm = plain(group.transport(0));
  comm->set_timeout_ms(100);
  follow(machine, theirs);
  comm->reduce_sum(machine.on(), value, value, 1);
  while (!comm->error()) std::this_thread::yield();
  CHECK(says(comm->error(), Status::kTimeout, "reduce_sum #0 of rank 0"));
  const Watch watch;
  comm.reset();
  CHECK_FALSE(watch.over(cuda::kAbortMs));
  theirs.ended = true;
  machine.finish();
  await_aborts();
  CHECK(fake_nccl::counts().aborted == 1);
  check_rules();
}

TEST_CASE("nccl abort: what enqueued work uses is there until the abort has ended, then it is not",
          "[nccl]") {
  fake_nccl::reset();
  Machine machine(world_device());
  BusyStream theirs;
  Theirs own(new_id(), 1, 0, false);
  own.lost = true;
  auto* const value = machine.put(std::vector<int64_t>{5});
  auto shared = std::make_shared<NcclShared>(0);
  shared->handle = own.handle();
  follow(machine, theirs);
  fake_nccl::api().all_reduce(value, value, 1, cuda::kNcclInt64, cuda::kNcclSum, own.handle(),
                              cuda::handle_of(machine.on()));
  auto last = std::make_unique<cuda::CudaEvent>(0);
  cudaEventRecord(last->handle(), cuda::handle_of(machine.on()));
  std::vector<std::unique_ptr<RawMemory>> scratch;
  scratch.push_back(std::make_unique<RawMemory>(0, 64, false));
  const void *const used = scratch[0]->data(), *const closed = shared->closed();
  shared->fail(Error(Status::kAborted, "enough"));
  shared->begin_abort(fake_nccl::api());
  shared->begin_abort(fake_nccl::api());
  shared->keep(std::move(scratch), std::move(last));
  const std::weak_ptr<NcclShared> seen = shared;
  shared.reset();
  CHECK(there(used));
  CHECK(there(closed));
  theirs.ended = true;
  while (!seen.expired() || there(closed)) std::this_thread::yield();
  CHECK_FALSE(there(used));
  CHECK(fake_nccl::counts().aborted == 1);
  check_rules();
}

TEST_CASE("nccl abort: who shares a borrowed handle does not wait for the other's stream",
          "[nccl]") {
  fake_nccl::reset();
  ThreadGroup group(1);
  Theirs own(new_id(), 1, 0, true);
  own.lost = true;
  NcclOptions options;
  options.from = own.handle();
  options.borrow = true;
  Machine machine(world_device());
  BusyStream theirs;
  auto* const value = machine.put(std::vector<int64_t>{5});
  auto first = over_fake(group.transport(0), options);
  auto second = first->duplicate();
  follow(machine, theirs);
  second->reduce_sum(machine.on(), value, value, 1);
  const Watch watch;
  first->abort(Status::kAborted, "enough");
  first.reset();
  second->abort(Status::kTimeout, "late");
  CHECK(says(second->error(), Status::kAborted, "enough"));
  CHECK_THROWS_WITH(NcclShared::of_borrowed(own.handle(), 0), "enough");  // not gone yet
  CHECK_FALSE(watch.over(cuda::kAbortMs));
  theirs.ended = true;
  machine.finish();
  await_aborts();
  second->abort(Status::kAborted, "again");
  second.reset();
  CHECK(fake_nccl::counts().aborted == 1);
  check_rules();
}
