#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cfenv>
#include <chrono>
#include <clocale>
#include <condition_variable>
#include <functional>
#include <limits>
#include <locale>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/processors.hpp"
#include "host/thread_pool.hpp"
#include "host_fixture.hpp"
#include "muonrt/muonrt.h"
#include "support/bits_cases.hpp"
#include "support/faults/flush_to_zero.hpp"

using namespace muonrt;
using host_test::OnHost;
using muonrt::host::ThreadPool;

TEST_CASE(
    "processors: ranks with one mask share it, and ranks in one control group share its quota",
    "[unit][host]") {
  const auto share = [](std::vector<Processors> all, int rank = 0) {
    return threads_of(all, rank);
  };
  const Processors eight{1, 10, 100, 8, 0};
  const Processors elsewhere{2, 10, 100, 8, 0}, beside{1, 11, 100, 3, 0};
  CHECK(share({eight}) == 8);
  CHECK(share({eight, eight, eight}) == 2);
  CHECK(share({eight, elsewhere}) == 8);
  CHECK(share({eight, beside}) == 8);
  CHECK(share({eight, beside, beside}, 1) == 1);
  CHECK(share({eight, beside}, 1) == 3);
  CHECK(share(std::vector<Processors>(9, eight), 8) == 1);
  CHECK(share({{1, 10, 100, 1000, 0}}) == 256);
  const Processors limited{1, 10, 100, 8, 6}, other_group{1, 10, 101, 8, 6};
  CHECK(share({limited}) == 6);
  CHECK(share({limited, limited}) == 3);
  CHECK(share({limited, other_group}) == 4);
  CHECK(share(std::vector<Processors>(7, limited)) == 1);
}

TEST_CASE("host device: memory is aligned to 256 bytes and counted", "[unit][host]") {
  const auto device = host::make_host_device({});
  const int64_t calls = device->allocations(), bytes = device->allocated_bytes();
  REQUIRE(device->allocate(0) == nullptr);
  std::vector<void*> blocks;
  for (const int64_t size : {1, 255, 256, 257, 100003}) {
    blocks.push_back(device->allocate(size));
    REQUIRE(reinterpret_cast<uintptr_t>(blocks.back()) % 256 == 0);
    std::memset(blocks.back(), 0x5a, static_cast<size_t>(size));
  }
  REQUIRE(device->allocations() == calls + 5);
  REQUIRE(device->allocated_bytes() == bytes + 1 + 255 + 256 + 257 + 100003);
  for (void* block : blocks) device->release(block);
  device->release(nullptr);
  REQUIRE(device->allocated_bytes() == bytes);
}

TEST_CASE("host device: failed allocations and invalid options return their status",
          "[unit][host][nosan]") {
  const auto device = host::make_host_device({});
  const auto status_of = [](auto call) {
    try {
      call();
    } catch (const Error& error) {
      return error.status();
    }
    return Status::kOk;
  };
  REQUIRE(status_of([&] { device->allocate(int64_t{1} << 60); }) == Status::kOutOfMemory);
  REQUIRE(status_of([&] { device->allocate(-1); }) == Status::kInvalidArgument);
  REQUIRE(status_of([&] { device->allocate(std::numeric_limits<int64_t>::max()); }) ==
          Status::kInvalidArgument);
  REQUIRE(status_of([] { host::make_host_device({.threads = 0}); }) == Status::kInvalidArgument);
}

TEST_CASE("host device: its threads block all signals except faults", "[unit][host]") {
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  OnHost host;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  sigset_t inside;
  auto* mask = &inside;
  host::host_stream(*host.stream).enqueue(host::Task([=] {
    pthread_sigmask(SIG_SETMASK, nullptr, mask);
  }));
  host.finish();
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGALRM, SIGCHLD, SIGSEGV, SIGFPE}) {
    REQUIRE(sigismember(&after, signal) == sigismember(&before, signal));
    REQUIRE(sigismember(&inside, signal) == (signal == SIGSEGV || signal == SIGFPE ? 0 : 1));
  }
}

namespace {

// The following cases test that results do not depend on the caller's floating-point environment
// and locale, and that no call changes the environment or the locale.
constexpr int64_t kRows = 24, kCols = 40;

// Returns values of which many products are subnormal, so flush-to-zero would change the results.
std::vector<float> filled(int64_t salt, float scale) {
  std::vector<float> out(kRows * kCols);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = scale * world::value(salt, static_cast<int64_t>(i), 0);
  }
  return out;
}

struct Result {
  std::vector<float> matrix, vector, momentum;
  std::string plan;
  bool operator==(const Result&) const = default;
};

void require(muonrt_status_t status) {
  if (status != MUONRT_OK) FAIL(muonrt_get_last_error());
}

/// The inputs of a run. A test creates them before it changes the environment, because the test's
/// arithmetic depends on the environment.
struct Inputs {
  std::vector<float> matrix = filled(1, 1.0f), vector = filled(2, 1e-20f);
  std::vector<float> grad = filled(3, 1e-37f), small = filled(4, 1e-21f);
};

Result run(const Inputs& inputs) {
  Result out{inputs.matrix, inputs.vector, {}, {}};
  const std::vector<float>&grad = inputs.grad, &small = inputs.small;
  const int64_t shape[2] = {kRows, kCols}, length = kRows * kCols;
  muonrt_comm_t* comm = nullptr;
  require(muonrt_comm_create_self(&comm));
  muonrt_group_t groups[2];
  muonrt_group_init_muon(&groups[0]);
  muonrt_group_init_adamw(&groups[1]);
  muonrt_param_t params[2];
  for (int i = 0; i < 2; ++i) {
    muonrt_param_init(&params[i]);
    params[i].name = i == 0 ? "matrix" : "vector";
    params[i].group = i;
    params[i].ndim = i == 0 ? 2 : 1;
    params[i].shape = i == 0 ? shape : &length;
    params[i].data = i == 0 ? out.matrix.data() : out.vector.data();
    params[i].grad = i == 0 ? grad.data() : small.data();
  }
  muonrt_tuning_options_t tuning;
  muonrt_tuning_options_init(&tuning);
  tuning.transport_dtype = MUONRT_DTYPE_F32;
  muonrt_optimizer_options_t options;
  muonrt_optimizer_options_init(&options);
  options.threads = 2;
  options.tuning = &tuning;
  muonrt_optimizer_t* optimizer = nullptr;
  require(muonrt_optimizer_create(&optimizer, comm, &options, groups, 2, params, 2));
  for (int step = 0; step < 3; ++step) {
    muonrt_step_args_t args;
    muonrt_step_args_init(&args);
    args.lr = 1e-3 / 3;
    require(muonrt_optimizer_step(nullptr, optimizer, &args));
  }
  int64_t n_shards = 0;
  require(muonrt_optimizer_get_state_shards(nullptr, 0, &n_shards, optimizer));
  muonrt_state_shard_t empty;
  muonrt_state_shard_init(&empty);
  std::vector<muonrt_state_shard_t> shards(static_cast<size_t>(n_shards), empty);
  require(muonrt_optimizer_get_state_shards(shards.data(), n_shards, &n_shards, optimizer));
  for (const muonrt_state_shard_t& shard : shards) {
    if (shard.param != 0 || shard.kind != MUONRT_STATE_MOMENTUM) continue;
    const auto* values = static_cast<const float*>(shard.data);
    out.momentum.assign(values, values + (shard.end - shard.begin));
  }
  int64_t needed = 0;
  require(muonrt_optimizer_describe_plan(nullptr, 0, &needed, optimizer, MUONRT_FORMAT_JSON));
  out.plan.resize(static_cast<size_t>(needed) + 1);
  require(muonrt_optimizer_describe_plan(out.plan.data(), needed + 1, nullptr, optimizer,
                                         MUONRT_FORMAT_JSON));
  muonrt_optimizer_destroy(optimizer);
  muonrt_comm_destroy(comm);
  return out;
}

}  // namespace

TEST_CASE("environment: a caller's rounding and flushing change no bit and are restored",
          "[unit][abi]") {
  const Inputs inputs;
  const Result plain = run(inputs);
  // Without subnormal values, this test could not fail.
  CHECK(std::any_of(plain.momentum.begin(), plain.momentum.end(),
                    [](float m) { return std::fpclassify(m) == FP_SUBNORMAL; }));
  const std::function<void()> settings[] = {
      [] { fp_control::flush_to_zero(); }, [] { std::fesetround(FE_UPWARD); },
      [] { std::fesetround(FE_DOWNWARD); }, [] { std::fesetround(FE_TOWARDZERO); }};
  for (const auto& set : settings) {
    std::fenv_t saved;
    std::fegetenv(&saved);
    set();
    const uint64_t before = fp_control::get();
    const Result result = run(inputs);
    const uint64_t after = fp_control::get();
    std::fesetenv(&saved);
    CAPTURE(&set - settings);
    CHECK(after == before);
    CHECK(result == plain);
  }
}

TEST_CASE("environment: a caller's locale changes no text and is restored", "[unit][abi]") {
  const Inputs inputs;
  const Result plain = run(inputs);
  /// A locale with decimal commas and grouped digits. It is available on every machine.
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::string c_before = std::setlocale(LC_ALL, nullptr);
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Comma));
  const Result other = run(inputs);
  const std::locale set = std::locale::global(before);
  CHECK(other == plain);
  CHECK(std::has_facet<std::numpunct<char>>(set));
  CHECK(std::use_facet<std::numpunct<char>>(set).decimal_point() == ',');
  CHECK(std::setlocale(LC_ALL, nullptr) == c_before);
}

TEST_CASE("thread pool: every index runs exactly once, in loop after loop", "[unit][threads]") {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    CHECK(pool.threads() == threads);
    for (const int64_t count : {0, 1, 2, 3, 7, 1000}) {
      for (int repeat = 0; repeat < 50; ++repeat) {
        std::vector<int> runs(static_cast<size_t>(count), 0);
        std::atomic<int> wrong_threads{0};
        pool.parallel_for(count, [&](int64_t index, int thread) {
          ++runs[static_cast<size_t>(index)];
          if (thread < 0 || thread >= threads) ++wrong_threads;
        });
        CHECK(wrong_threads == 0);
        CHECK(runs == std::vector<int>(static_cast<size_t>(count), 1));
      }
    }
  }
}

TEST_CASE("thread pool: no two bodies run concurrently with one thread number", "[unit][threads]") {
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

TEST_CASE("thread pool: all threads run bodies concurrently", "[unit][threads]") {
  constexpr int kThreads = 3;
  ThreadPool pool(kThreads);
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::mutex mutex;
    std::condition_variable all_arrived;
    int arrived = 0;
    std::atomic<int> timeouts{0};
    pool.parallel_for(kThreads, [&](int64_t, int) {
      std::unique_lock lock(mutex);
      ++arrived;
      all_arrived.notify_all();
      if (!all_arrived.wait_for(lock, std::chrono::seconds(60),
                                [&] { return arrived == kThreads; }))
        ++timeouts;
    });
    REQUIRE(timeouts == 0);
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

TEST_CASE("thread pool: fewer than 1 thread is rejected", "[unit][threads]") {
  CHECK_THROWS_AS(ThreadPool(0), muonrt::Error);
  CHECK_THROWS_AS(ThreadPool(-3), muonrt::Error);
}

namespace {

/// Returns whether this thread rounds to nearest and keeps subnormal values.
bool has_default_environment() {
  const volatile float smallest = 0x1p-126f;
  const volatile float denormal = smallest * 0.5f;
  return std::fegetround() == FE_TONEAREST && denormal != 0.0f;
}

}  // namespace

TEST_CASE("environment: pool threads and stream tasks do not inherit it from their creator",
          "[unit][threads]") {
  constexpr int kThreads = 3;
  const StreamKind kinds[] = {StreamKind::kCompute, StreamKind::kComm, StreamKind::kCommOnCaller};
  std::atomic<int> plain{0}, arrived{0};
  std::fenv_t before;
  std::fegetenv(&before);
  std::fesetround(FE_DOWNWARD);
  fp_control::flush_to_zero();
  ThreadPool pool(kThreads);
  const auto device = host::make_host_device({});
  for (const StreamKind kind : kinds) {
    const auto stream = device->create_stream(kind);
    const auto done = device->create_event();
    auto* const count = &plain;
    host::host_stream(*stream).enqueue(host::Task([=] { *count += has_default_environment(); }));
    device->record(*done, *stream);
    device->synchronize(*done, Deadline::in_ms(60000));
  }
  std::fesetenv(&before);
  CHECK(plain == 3);
  pool.parallel_for(kThreads, [&](int64_t, int) {
    if (has_default_environment()) ++plain;
    ++arrived;  // each thread waits for the others here, so it runs exactly one index
    const Deadline deadline = Deadline::in_ms(60000);
    while (arrived < kThreads && !deadline.passed()) std::this_thread::yield();
  });
  CHECK(plain == 3 + kThreads);
}
