#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/function_ref.hpp"

namespace muonrt::host {

/// A fixed set of threads that run parallel loops. The calling thread takes part.
/// Threads: only one thread at a time may call parallel_for. A body must not call it.
class ThreadPool {
 public:
  /// @param threads  number of threads that work on a loop, including the caller; >= 1.
  /// Errors: INVALID_ARGUMENT if threads < 1; OUT_OF_MEMORY if a thread cannot be started.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const noexcept { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(index, thread) once for every index in [0, count), in any order. `thread` is the
  /// number of the thread that runs the body, in [0, threads()); the caller has number 0. When
  /// parallel_for returns, everything that the bodies have written to memory is visible to the
  /// caller. If a body throws, the loop stops early, and parallel_for throws the first exception
  /// after all running bodies have returned. Does not allocate.
  void parallel_for(int64_t count, FunctionRef<void(int64_t, int)> body);

 private:
  struct Loop;
  void work(int thread);
  void stop() noexcept;

  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  Loop* loop_ = nullptr;     // the loop that workers may still join, or null
  uint64_t generation_ = 0;  // counts loops, so that a worker joins each loop at most once
  int running_ = 0;          // workers inside the current loop
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace muonrt::host
