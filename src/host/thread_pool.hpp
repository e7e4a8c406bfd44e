#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/function_ref.hpp"

namespace muonrt::host {

/// A fixed set of threads that share loops; the thread that asks works too.
/// Threads: one owner at a time calls parallel_for; it must not be called from inside a body.
class ThreadPool {
 public:
  /// @param threads  how many work on a loop, the caller included; >= 1.
  /// Errors: INVALID_ARGUMENT if threads < 1; OUT_OF_MEMORY if the system refuses a thread.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const noexcept { return static_cast<int>(workers_.size()) + 1; }

  /// body(index, thread) has run once for every index in [0, count), in no fixed order, thread in
  /// [0, threads()) naming who ran it (0 is the caller). What the bodies wrote is visible after.
  /// The first exception of a body ends the loop early and is thrown to the caller, once no body
  /// runs any more. Allocates nothing.
  void parallel_for(int64_t count, FunctionRef<void(int64_t, int)> body);

 private:
  struct Loop;
  void work(int thread);
  void stop() noexcept;

  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  Loop* loop_ = nullptr;     // the loop that workers may still join
  uint64_t generation_ = 0;  // counts loops, so that a worker joins each at most once
  int running_ = 0;          // workers inside the current loop
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace muonrt::host
