#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.hpp"
#include "cuda/device/cuda_device.hpp"

namespace muonrt::cuda {

/// A thread that ensures that every operation on a GPU ends. While operations are in flight, the
/// thread polls their events and calls `poll_error`. It reports an error if no operation has ended
/// within the timeout. While no operation is in flight, the thread sleeps.
class NcclWatchdog {
 public:
  struct Calls {
    std::function<std::optional<Error>()> poll_error;  // returns an error from elsewhere
    std::function<int64_t()> timeout_ms;
    std::function<void(const Error&)> report;  // called at most once; then nothing is watched. The
                                               // destructor waits for this call
  };
  NcclWatchdog(int device, int rank, Calls calls);
  ~NcclWatchdog();

  /// Allocates memory, so that `add` does not allocate while at most `limit` operations are in
  /// flight.
  void prepare(int64_t limit);
  /// Watches the work that has been enqueued on `stream` so far. `what` must be a string literal.
  /// @param messages  number of messages that the work sends and receives.
  void add(cudaStream_t stream, const char* what, int64_t messages);
  int64_t watched() const;
  /// Returns whether at most `limit` messages would be in flight if `messages` more were enqueued.
  /// Also returns true while at most one operation is in flight. Relaxes the capture mode of the
  /// calling thread. Errors: DEVICE if the GPU is lost.
  bool has_capacity(int64_t messages, int64_t limit);

  /// While an object of this class exists, the calling thread is inside NCCL. If the communicator
  /// is blocking, NCCL may wait for a peer without a limit.
  class BlockingCallScope {
   public:
    BlockingCallScope(NcclWatchdog& watchdog, const char* what) : watchdog_(watchdog) {
      watchdog_.enter(what);
    }
    ~BlockingCallScope() { watchdog_.enter(nullptr); }
    BlockingCallScope(const BlockingCallScope&) = delete;
    BlockingCallScope& operator=(const BlockingCallScope&) = delete;

   private:
    NcclWatchdog& watchdog_;
  };

 private:
  struct Operation {
    std::unique_ptr<CudaEvent> done;
    const char* what;
    int64_t number, messages;
  };
  void enter(const char* what);
  void run();
  void collect();
  std::optional<Error> problem();

  const int device_, rank_;
  const Calls calls_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Operation> pending_;
  std::vector<std::unique_ptr<CudaEvent>> spare_;
  Deadline::Clock::time_point progress_;
  int64_t count_ = 0, messages_ = 0;  // number of all operations; messages of the pending ones
  const char* inside_ = nullptr;
  Deadline::Clock::time_point entered_;
  std::optional<Error>
      lost_;  // an event reported that the device is lost, so no pending operation will end
  bool stop_ = false, reported_ = false;
  std::thread thread_;
};

}  // namespace muonrt::cuda
