#include <pthread.h>
#include <signal.h>

#include <catch2/catch.hpp>
#include <cfenv>
#include <limits>

#include "host_fixture.hpp"
#include "support/faults/flush_to_zero.hpp"

using namespace muonrt;
using host_test::OnHost;

namespace {

/// Rounding and flushing as arithmetic shows them.
struct Arithmetic {
  bool rounds_to_nearest = false;
  bool keeps_denormals = false;
};

Arithmetic observe() {
  // Volatile: computed here and now, by the machine.
  volatile float one = 1.0f, tiny = 0x1p-30f, least = 0x1p-126f, half = 0.5f, twice = 2.0f;
  volatile float denormal = 0x1p-140f;
  const float up = one + tiny, down = -one - tiny, made = least * half, read = denormal * twice;
  return {up == 1.0f && down == -1.0f && std::fegetround() == FE_TONEAREST,
          made > 0.0f && read > 0.0f};
}

}  // namespace

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

TEST_CASE("host device: refused memory and bad options are errors with their status",
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

TEST_CASE("host device: its description names the kind and the product kernel", "[unit][host]") {
  const auto fast = host::make_host_device({});
  const auto portable = host::make_host_device({.threads = 1, .portable_gemm = true});
  REQUIRE(fast->describe().rfind("host ", 0) == 0);
  REQUIRE(fast->describe() == host::make_host_device({.threads = 2})->describe());
  REQUIRE(portable->describe().find("portable") != std::string::npos);
}

TEST_CASE("host device: the creator's rounding and flushing neither leak in nor change",
          "[unit][host][tsan]") {
  std::fenv_t before;
  std::fegetenv(&before);
  std::fesetround(FE_UPWARD);
  fp_control::flush_to_zero();
  const uint64_t control = fp_control::get();
  Arithmetic seen[3];
  std::vector<float> scaled(100000);
  {
    const auto device = host::make_host_device({.threads = 3});
    const auto done = device->create_event();
    int i = 0;
    for (const StreamKind kind :
         {StreamKind::kCompute, StreamKind::kComm, StreamKind::kCommOnCaller}) {
      const auto stream = device->create_stream(kind);
      Arithmetic* out = &seen[i++];
      host::host_stream(*stream).enqueue(host::Task([out] { *out = observe(); }));
      device->record(*done, *stream);
      device->synchronize(*done, Deadline::in_ms(60000));
    }
    // Denormals through the pool's threads.
    const auto stream = device->create_stream(StreamKind::kCompute);
    const MatrixBatch batch{scaled.data(), DType::kF32, 400, 250, 250, 1, 0};
    for (float& x : scaled) x = 0x1p-140f;
    Findings findings;
    device->ops().normalize(*stream, batch, batch, Normalization{1.0f}, &findings);
    device->record(*done, *stream);
    device->synchronize(*done, Deadline::in_ms(60000));
  }
  const int rounding = std::fegetround();
  const uint64_t control_after = fp_control::get();
  std::fesetenv(&before);
  for (const Arithmetic& each : seen) {
    CHECK(each.rounds_to_nearest);
    CHECK(each.keeps_denormals);
  }
  for (const float x : scaled) REQUIRE(x == Approx(1.0 / std::sqrt(100000.0)).epsilon(1e-6));
  CHECK(rounding == FE_UPWARD);
  CHECK(control_after == control);
}

TEST_CASE("host device: its threads leave signals to the program, but not faults", "[unit][host]") {
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
