#pragma once

#include <cstdint>
#include <functional>
#include <thread>

#include "cuda_runtime.h"

/// Functions that tests use, in addition to the CUDA runtime, to control the emulated GPU.
namespace emulator {

/// While `held` is true, enqueued work does not run, and incomplete events stay incomplete.
void hold(bool held);
/// Makes the next launch and everything after it fail.
void fail_next_kernel();
void forget_failure();
/// Makes allocation `number` of device or pinned memory by the calling thread fail. Future
/// allocations are counted from 1. If `number` is 0, no allocation fails.
void fail_allocation(int number);
/// Numbers of kernels that have been launched so far.
struct Launched {
  int64_t kernels = 0, blocks = 0;
  int64_t early = 0;      // kernels that may begin before the previous kernel has ended
  int64_t clustered = 0;  // kernels whose thread blocks form clusters
};
Launched launched();
inline int64_t early_launches() { return launched().early; }
/// Sets the number of SMs that the GPU reports. The default is 2.
void pretend_sms(int count);
/// Returns the number of graphs that have been launched so far.
int64_t graph_launches();
/// Returns the number of kernels, copies and fills that are enqueued and have not run.
int64_t pending();
/// Returns the number of calls so far in which a real runtime would wait, allocate memory, create
/// an object or load a kernel. A step must not make such calls.
int64_t slow_calls();
/// Returns the devices on which a context was created since forget_contexts(), one bit for each.
unsigned contexts();
void forget_contexts();
/// Makes the calling thread enter or leave a context that the program has created and that is not
/// the primary context of the current device. foreign_calls() returns the number of runtime calls
/// in such contexts.
void enter_foreign_context(bool enters);
int64_t foreign_calls();

/// While an object of this class exists, nothing is enqueued, and nothing runs on other threads.
class MachineLock {
 public:
  MachineLock();
  ~MachineLock();
  MachineLock(const MachineLock&) = delete;
  MachineLock& operator=(const MachineLock&) = delete;
};
/// Enqueues work that may have to wait for other streams. The stream calls `attempt` repeatedly
/// until it returns true, and only then runs later work.
/// @return  the position of the work in the stream.
int64_t enqueue_operation(cudaStream_t stream, std::function<bool()> attempt);
/// Runs the work that can run now. Returns true if no work is left in the streams that the thread
/// `owner` has created. Before a thread frees memory, it must wait until this is true for its
/// streams.
bool drain(std::thread::id owner);
/// Runs the work before `position`, as far as it can run now. Returns whether all of this work has
/// run.
bool reach(cudaStream_t stream, int64_t position);

// The emulated libraries of the vendor, which are built separately, use the following functions.
#pragma GCC visibility push(default)
/// Returns the calling thread's device, and creates a context on it.
int library_device();
/// Returns whether the memory belongs to the current device or is pinned.
bool library_reaches(const void* memory);
/// Counts a slow call. The library calls this function before it allocates, waits or loads a
/// kernel. Returns false if a capture forbids slow calls, and invalidates that capture.
bool library_may_load();
/// Enqueues a kernel on the current device, which must be the device of the stream.
cudaError_t enqueue_library_kernel(cudaStream_t stream, std::function<void()> work);
/// Advances the clock of the device by the time that a library's kernel takes.
void library_takes(int64_t ns);
#pragma GCC visibility pop

}  // namespace emulator
