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

/// A thread that sees to it that every operation on a GPU ends: it polls those that are under way,
/// asks for errors meanwhile, and reports when none has ended for the time allowed. It waits
/// without polling while there are none.
class NcclWatchdog {
 public:
  struct Calls {
    std::function<std::optional<Error>()> poll_error;  // an error seen elsewhere
    std::function<int64_t()> timeout_ms;
    std::function<void(const Error&)> report;  // called once; nothing is watched afterwards;
                                               // the destructor waits for it
  };
  NcclWatchdog(int device, int rank, Calls calls);
  ~NcclWatchdog();

  /// Makes what an operation to come will want, beside at most `most` others.
  void prepare(int64_t most);
  /// Watches what has been enqueued on `stream`, until then. `what` is a literal.
  /// @param messages  that go out and come in with it.
  void add(cudaStream_t stream, const char* what, int64_t messages);
  int64_t watched() const;
  /// Whether `messages` more would be `most` at most with those under way, or one operation at most
  /// is. The calling thread's captures are relaxed. Errors: DEVICE if the GPU is lost.
  bool has_capacity(int64_t messages, int64_t most);

  /// The calling thread is inside NCCL while one lives. There it may wait for a peer without end,
  /// if the communicator is one that blocks.
  class BlockingCallScope {
   public:
    BlockingCallScope(NcclWatchdog& watch, const char* what) : watch_(watch) { watch_.enter(what); }
    ~BlockingCallScope() { watch_.enter(nullptr); }
    BlockingCallScope(const BlockingCallScope&) = delete;
    BlockingCallScope& operator=(const BlockingCallScope&) = delete;

   private:
    NcclWatchdog& watch_;
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
  int64_t count_ = 0, messages_ = 0;  // messages of those pending
  const char* inside_ = nullptr;
  Deadline::Clock::time_point entered_;
  std::optional<Error> lost_;  // an event has said so: nothing ends any more
  bool stop_ = false, reported_ = false;
  std::thread thread_;
};

}  // namespace muonrt::cuda
