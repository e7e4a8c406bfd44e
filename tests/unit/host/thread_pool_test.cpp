#include "host/thread_pool.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "base/error.hpp"
#include "support/faults/flush_to_zero.hpp"

using muonrt::host::ThreadPool;

TEST_CASE("thread pool: every index runs exactly once, in loop after loop", "[unit][threads]") {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    CHECK(pool.threads() == threads);
    for (const int64_t count : {0, 1, 2, 3, 7, 1000}) {
      for (int repeat = 0; repeat < 50; ++repeat) {
        std::vector<int> runs(static_cast<size_t>(count), 0);
        std::atomic<int> strangers{0};
        pool.parallel_for(count, [&](int64_t index, int thread) {
          ++runs[static_cast<size_t>(index)];
          if (thread < 0 || thread >= threads) ++strangers;
        });
        CHECK(strangers == 0);
        CHECK(runs == std::vector<int>(static_cast<size_t>(count), 1));
      }
    }
  }
}

TEST_CASE("thread pool: no two bodies run under one thread number at a time", "[unit][threads]") {
  ThreadPool pool(4);
  std::atomic<int> inside[4] = {};
  std::atomic<int> clashes{0};
  for (int repeat = 0; repeat < 20; ++repeat) {
    pool.parallel_for(200, [&](int64_t, int thread) {
      if (inside[thread].fetch_add(1) != 0) ++clashes;
      inside[thread].fetch_sub(1);
    });
  }
  CHECK(clashes == 0);
}

TEST_CASE("thread pool: as many bodies run at the same time as there are threads",
          "[unit][threads]") {
  constexpr int kThreads = 3;
  ThreadPool pool(kThreads);
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::mutex mutex;
    std::condition_variable met;
    int arrived = 0;
    std::atomic<int> alone{0};
    pool.parallel_for(kThreads, [&](int64_t, int) {
      std::unique_lock lock(mutex);
      ++arrived;
      met.notify_all();
      if (!met.wait_for(lock, std::chrono::seconds(60), [&] { return arrived == kThreads; }))
        ++alone;
    });
    REQUIRE(alone == 0);
  }
}

TEST_CASE("thread pool: an exception ends the loop, reaches the caller and leaves the pool usable",
          "[unit][threads]") {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::atomic<int> inside{0};
      const auto loop = [&] {
        pool.parallel_for(1000, [&](int64_t index, int) {
          ++inside;
          if (index == 5) {
            --inside;
            throw std::runtime_error("five");
          }
          --inside;
        });
      };
      CHECK_THROWS_WITH(loop(), "five");
      CHECK(inside == 0);
      std::atomic<int> sum{0};
      pool.parallel_for(10, [&](int64_t index, int) { sum += static_cast<int>(index); });
      CHECK(sum == 45);
    }
  }
}

TEST_CASE("thread pool: a pool of no threads is refused", "[unit][threads]") {
  CHECK_THROWS_AS(ThreadPool(0), muonrt::Error);
  CHECK_THROWS_AS(ThreadPool(-3), muonrt::Error);
}

TEST_CASE(
    "thread pool: its threads round to nearest and keep denormals, whatever their creator does",
    "[unit][threads]") {
  constexpr int kThreads = 3;
  std::fenv_t before;
  std::fegetenv(&before);
  std::fesetround(FE_DOWNWARD);
  fp_control::flush_to_zero();
  ThreadPool pool(kThreads);
  std::fesetenv(&before);

  std::mutex mutex;
  std::condition_variable met;
  int arrived = 0;
  std::atomic<int> wrong{0};
  pool.parallel_for(kThreads, [&](int64_t, int) {
    volatile float smallest = 0x1p-126f;
    const float denormal = smallest * 0.5f;
    if (std::fegetround() != FE_TONEAREST || denormal == 0.0f) ++wrong;
    std::unique_lock lock(mutex);  // so that each thread takes one index
    ++arrived;
    met.notify_all();
    met.wait_for(lock, std::chrono::seconds(60), [&] { return arrived == kThreads; });
  });
  CHECK(arrived == kThreads);
  CHECK(wrong == 0);
}
