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

/// A machine, and a stream of the caller's that does not end.
struct Scene {
  Machine machine{(fake_nccl::reset(), world_device())};
  BusyStream theirs;
  int64_t* const value = machine.put(std::vector<int64_t>{5});

  /// The machine's stream waits for what `theirs` has now.
  void follow() {
    theirs.work();
    machine.device->join(machine.on(), theirs.handle, "test");
  }
  void sum(Comm& comm) { comm.reduce_sum(machine.on(), value, value, 1); }
  void go_on() {
    theirs.ended = true;
    machine.finish();
  }
};

bool there(const void* memory) {
  cudaPointerAttributes attributes = {};
  const cudaError_t asked = cudaPointerGetAttributes(&attributes, memory);
  cudaGetLastError();
  return asked == cudaSuccess && attributes.type != cudaMemoryTypeUnregistered;
}

}  // namespace

TEST_CASE("nccl abort: one that hangs ends when the stream goes on, in a communicator long gone",
          "[nccl]") {
  Scene scene;
  ThreadGroup group(1);
  auto comm = plain(group.transport(0));
  scene.follow();
  scene.sum(*comm);
  const Watch watch;
  for (int i = 0; i < 3; ++i) comm->abort(Status::kAborted, "enough");
  CHECK(says(error_of([&] { scene.sum(*comm); }), Status::kAborted, "enough"));
  comm.reset();
  CHECK_FALSE(watch.over(cuda::kAbortMs));  // all those waits are one
  CHECK(fake_nccl::aborting() == 1);
  CHECK(fake_nccl::counts().aborted == 0);
  scene.go_on();
  CHECK(scene.machine.get_one(scene.value) == 5);
  await_aborts();
  CHECK(fake_nccl::counts().aborted == 1);
  check_rules();
}

TEST_CASE("nccl abort: a communicator destroyed without an error does not wait for a stream either",
          "[nccl]") {
  Scene scene;
  ThreadGroup group(1);
  auto comm = plain(group.transport(0));
  scene.follow();
  scene.sum(*comm);
  const Watch watch;
  comm.reset();
  CHECK_FALSE(watch.over(2000 + cuda::kAbortMs));
  CHECK(fake_nccl::aborting() == 1);
  scene.go_on();
  CHECK(scene.machine.get_one(scene.value) == 5);
  await_aborts();
  check_rules();
}

TEST_CASE("nccl abort: a watch that ends an operation is joined at once", "[nccl]") {
  Scene scene;
  ThreadGroup group(1);
  auto comm = plain(group.transport(0));
  comm->set_timeout_ms(100);
  scene.follow();
  scene.sum(*comm);
  while (!comm->error()) std::this_thread::yield();
  CHECK(says(comm->error(), Status::kTimeout, "reduce_sum #0 of rank 0"));
  const Watch watch;
  comm.reset();
  CHECK_FALSE(watch.over(cuda::kAbortMs));
  scene.go_on();
  await_aborts();
  CHECK(fake_nccl::counts().aborted == 1);
  check_rules();
}

TEST_CASE("nccl abort: what enqueued work uses is there until the abort has ended, then it is not",
          "[nccl]") {
  Scene scene;
  Theirs own(new_id(), 1, 0, false);
  own.lost = true;
  auto shared = std::make_shared<NcclShared>(0);
  shared->handle = own.handle();
  scene.follow();
  fake_nccl::api().all_reduce(scene.value, scene.value, 1, cuda::kNcclInt64, cuda::kNcclSum,
                              own.handle(), cuda::handle_of(scene.machine.on()));
  auto last = std::make_unique<cuda::CudaEvent>(0);
  cudaEventRecord(last->handle(), cuda::handle_of(scene.machine.on()));
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
  scene.theirs.ended = true;
  while (!seen.expired() || there(closed)) std::this_thread::yield();
  CHECK_FALSE(there(used));
  CHECK(fake_nccl::counts().aborted == 1);
  check_rules();
}

TEST_CASE("nccl abort: what stands behind a stream is kept though the abort has ended", "[nccl]") {
  Scene scene;
  Theirs own(new_id(), 1, 0, false);
  own.lost = true;
  auto shared = std::make_shared<NcclShared>(0);
  shared->handle = own.handle();
  shared->fail(Error(Status::kAborted, "enough"));
  CHECK_FALSE(shared->aborting());
  shared->abort(fake_nccl::api());  // NCCL has nothing enqueued
  CHECK(shared->aborting());
  await_aborts();
  scene.follow();
  auto last = std::make_unique<cuda::CudaEvent>(0);
  cudaEventRecord(last->handle(), cuda::handle_of(scene.machine.on()));
  std::vector<std::unique_ptr<RawMemory>> scratch;
  scratch.push_back(std::make_unique<RawMemory>(0, 64, false));
  const void* const used = scratch[0]->data();
  shared->keep(std::move(scratch), std::move(last));
  shared.reset();
  CHECK(there(used));
  scene.theirs.ended = true;
  while (there(used)) std::this_thread::yield();
  check_rules();
}

TEST_CASE("nccl abort: who shares a borrowed handle does not wait for the other's stream",
          "[nccl]") {
  Scene scene;
  ThreadGroup group(1);
  Theirs own(new_id(), 1, 0, true);
  own.lost = true;
  NcclOptions options;
  options.from = own.handle();
  options.borrow = true;
  auto first = over_fake(group.transport(0), options);
  auto second = first->duplicate();
  scene.follow();
  scene.sum(*second);
  const Watch watch;
  first->abort(Status::kAborted, "enough");
  first.reset();
  second->abort(Status::kTimeout, "late");
  CHECK(says(second->error(), Status::kAborted, "enough"));
  CHECK_THROWS_WITH(NcclShared::of_borrowed(own.handle(), 0), "enough");  // not gone yet
  CHECK_FALSE(watch.over(cuda::kAbortMs));
  scene.go_on();
  await_aborts();
  second->abort(Status::kAborted, "again");
  second.reset();
  CHECK(fake_nccl::counts().aborted == 1);
  check_rules();
}
