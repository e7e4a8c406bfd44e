#pragma once

#include <cstdint>
#include <functional>
#include <thread>

#include "cuda_runtime.h"

/// What tests may ask of the emulated GPU beyond the CUDA runtime.
namespace emulator {

/// While `held`, nothing that is enqueued runs, and events that are not complete stay so.
void hold(bool held);
/// The next launch ends with a launch failure, and so does everything after it.
void fail_next_kernel();
void forget_failure();
/// Of the calling thread's allocations from now on, this one fails for want of memory: 1 is the
/// next, 0 none. A device's memory or pinned.
void fail_allocation(int number);
/// Kernels launched so far.
struct Launched {
  int64_t kernels = 0, blocks = 0;
  int64_t early = 0;      // that may begin before the kernel in front of them has ended
  int64_t clustered = 0;  // whose blocks come in clusters
};
Launched launched();
inline int64_t early_launches() { return launched().early; }
/// SMs that the GPU says it has from now on; 2.
void pretend_sms(int count);
/// Graphs launched so far.
int64_t graph_launches();
/// Kernels, copies and fills that have been enqueued and not run.
int64_t pending();
/// Calls so far in which a real runtime waits, allocates, makes an object or loads a kernel: none
/// belongs in a step.
int64_t slow_calls();
/// Devices that have a context since `forget_contexts`, a bit for each.
unsigned contexts();
void forget_contexts();
/// The calling thread enters a context of its own, which is not the current device's primary one,
/// or leaves it; and the calls so far that were made in such.
void enter_foreign_context(bool enters);
int64_t foreign_calls();

/// Nothing is enqueued and nothing runs on other threads while one lives.
class MachineLock {
 public:
  MachineLock();
  ~MachineLock();
  MachineLock(const MachineLock&) = delete;
  MachineLock& operator=(const MachineLock&) = delete;
};
/// Work that may have to wait for other streams: while `attempt` says false it is tried again, and
/// what follows on the stream waits. @return  its place in the stream.
int64_t enqueue_operation(cudaStream_t stream, std::function<bool()> attempt);
/// Runs what can run now; whether that is all of the streams that a thread has made, as it has to
/// be before memory is freed there.
bool drain(std::thread::id owner);
/// Runs what comes before a place, as far as that is possible now.
bool reach(cudaStream_t stream, int64_t position);

// For libraries of the vendor that are built apart.
#pragma GCC visibility push(default)
/// The calling thread's; it has a context from now on.
int library_device();
/// Memory of the current device, or pinned.
bool library_reaches(const void* memory);
/// Before the library allocates, waits or loads a kernel: a slow call. False where a capture
/// forbids it, which is spoilt then.
bool library_may_load();
/// As a kernel on the current device, which has to be the stream's.
cudaError_t enqueue_library_kernel(cudaStream_t stream, std::function<void()> work);
/// What such a kernel takes on the device's clock.
void library_takes(int64_t ns);
#pragma GCC visibility pop

}  // namespace emulator
