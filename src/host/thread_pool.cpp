#include "host/thread_pool.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>

#include "base/error.hpp"
#include "base/signal_mask.hpp"
#include "host/fp_env.hpp"

namespace muonrt::host {

struct ThreadPool::Loop {
  Loop(int64_t count_in, FunctionRef<void(int64_t, int)> body_in)
      : count(count_in), body(body_in) {}

  int64_t count;
  FunctionRef<void(int64_t, int)> body;
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;

  void run(int thread) noexcept {
    for (;;) {
      const int64_t index = next.fetch_add(1, std::memory_order_relaxed);
      if (index >= count) return;
      try {
        body(index, thread);
      } catch (...) {
        next.store(count, std::memory_order_relaxed);
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
  }
};

ThreadPool::ThreadPool(int threads) {
  MUONRT_REQUIRE(threads >= 1, Status::kInvalidArgument, "thread pool: threads is ", threads,
                 ", but must be at least 1");
  workers_.reserve(static_cast<size_t>(threads - 1));
  const SignalMask signal_mask;
  try {
    for (int thread = 1; thread < threads; ++thread) {
      workers_.emplace_back([this, thread] { work(thread); });
    }
  } catch (const std::system_error& error) {
    const size_t started = workers_.size();
    stop();
    throw Error(Status::kOutOfMemory,
                cat("only ", started, " of ", threads - 1, " compute threads could be started (",
                    error.what(), "); use fewer threads"));
  } catch (const std::bad_alloc&) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::work(int thread) {
  const FpEnvironment fp_environment;
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stopping_ || (loop_ != nullptr && generation_ != seen); });
    if (stopping_) return;
    seen = generation_;
    Loop& loop = *loop_;
    ++running_;
    lock.unlock();
    loop.run(thread);
    lock.lock();
    if (--running_ == 0) idle_.notify_one();
  }
}

void ThreadPool::parallel_for(int64_t count, FunctionRef<void(int64_t, int)> body) {
  if (workers_.empty() || count <= 1) {
    for (int64_t index = 0; index < count; ++index) body(index, 0);
    return;
  }
  Loop loop(count, body);
  {
    const std::lock_guard lock(mutex_);
    MUONRT_CHECK_INTERNAL(loop_ == nullptr, "parallel_for called while another loop runs");
    loop_ = &loop;
    ++generation_;
  }
  const int64_t helpers = std::min(count - 1, static_cast<int64_t>(workers_.size()));
  for (int64_t i = 0; i < helpers; ++i) wake_.notify_one();
  loop.run(0);
  {
    // A thread that wakes up late must not join the loop, because `loop` is on this stack frame.
    std::unique_lock lock(mutex_);
    loop_ = nullptr;
    idle_.wait(lock, [&] { return running_ == 0; });
  }
  if (loop.error) std::rethrow_exception(loop.error);
}

}  // namespace muonrt::host
