#pragma once

#include <cstdint>
#include <functional>
#include <thread>

#include "cuda_runtime.h"

/// Control over the emulated GPU for tests, in addition to the CUDA runtime.
namespace emulator {

/// While `held`, enqueued work does not run, and incomplete events stay incomplete.
void hold(bool held);
/// The next launch fails, and everything after it, too.
void fail_next_kernel();
void forget_failure();
/// Makes one of the calling thread's next allocations of device or pinned memory fail: 1 is the
/// next, 0 none.
void fail_allocation(int number);
/// Kernels that were launched so far.
struct Launched {
  int64_t kernels = 0, blocks = 0;
  int64_t early = 0;      // may begin before the previous kernel has ended
  int64_t clustered = 0;  // whose thread blocks form clusters
};
Launched launched();
inline int64_t early_launches() { return launched().early; }
/// Sets the number of SMs that the GPU reports; the default is 2.
void pretend_sms(int count);
/// Number of graphs that were launched so far.
int64_t graph_launches();
/// Number of kernels, copies and fills that are enqueued and have not run.
int64_t pending();
/// Number of calls so far in which a real runtime waits, allocates, creates an object or loads a
/// kernel. A step must make none.
int64_t slow_calls();
/// Devices on which a context was created since `forget_contexts`, one bit for each.
unsigned contexts();
void forget_contexts();
/// Makes the calling thread enter or leave a context of the program, which is not the current
/// device's primary one; and the number of calls that were made in such contexts.
void enter_foreign_context(bool enters);
int64_t foreign_calls();

/// While such an object exists, nothing is enqueued and nothing runs on other threads.
class MachineLock {
 public:
  MachineLock();
  ~MachineLock();
  MachineLock(const MachineLock&) = delete;
  MachineLock& operator=(const MachineLock&) = delete;
};
/// Enqueues work that may have to wait for other streams: `attempt` is called again while it
/// returns false, and later work of the stream waits. @return  its position in the stream.
int64_t enqueue_operation(cudaStream_t stream, std::function<bool()> attempt);
/// Runs the work that can run now. Returns whether this was all work of the streams that a thread
/// has created, as is required before memory is freed there.
bool drain(std::thread::id owner);
/// Runs the work before a position, as far as possible now.
bool reach(cudaStream_t stream, int64_t position);

// For libraries of the vendor that are built separately.
#pragma GCC visibility push(default)
/// The calling thread's device, on which it creates a context.
int library_device();
/// Whether the memory belongs to the current device, or is pinned.
bool library_reaches(const void* memory);
/// Call it before the library allocates, waits or loads a kernel: counts a slow call. Returns false
/// if a capture forbids it, and invalidates that capture.
bool library_may_load();
/// Enqueues a kernel on the current device, which must be the stream's.
cudaError_t enqueue_library_kernel(cudaStream_t stream, std::function<void()> work);
/// Adds the time of such a kernel to the device's clock.
void library_takes(int64_t ns);
#pragma GCC visibility pop

}  // namespace emulator
