#pragma once

#include <cmath>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/ops.hpp"
#include "host/host_device.hpp"
#include "host/host_stream.hpp"
#include "support/numerics/noise.hpp"

// Types and functions that the tests of src/host share.
namespace host_test {

using test_support::bits_at;
using test_support::value_at;

/// Blocks tasks in pass() until open() is called.
class Gate {
 public:
  void open() {
    {
      const std::lock_guard lock(mutex_);
      open_ = true;
    }
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

/// A device with one stream. finish() waits for the enqueued work and throws its first error.
struct OnHost {
  explicit OnHost(int threads = 1, muonrt::StreamKind kind = muonrt::StreamKind::kCompute)
      : device(muonrt::host::make_host_device({.threads = threads, .portable_gemm = false})),
        stream(device->create_stream(kind)),
        done(device->create_event()) {}

  muonrt::Ops& ops() { return device->ops(); }
  void finish() {
    device->record(*done, *stream);
    device->synchronize(*done, muonrt::Deadline::in_ms(60000));
    if (const auto error = device->error()) throw muonrt::Error(*error);
  }

  std::unique_ptr<muonrt::Device> device;
  std::unique_ptr<muonrt::Stream> stream;
  std::unique_ptr<muonrt::Event> done;
};

template <class T>
std::vector<T> values(uint64_t seed, int64_t n, float scale = 1.0f) {
  std::vector<T> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    out[static_cast<size_t>(i)] = muonrt::from_f32<T>(value_at(seed, i) * scale);
  return out;
}

template <class T>
constexpr muonrt::DType dtype_of() {
  return sizeof(T) == 4 ? muonrt::DType::kF32 : muonrt::DType::kBF16;
}

/// Returns the distance between adjacent values of T at x.
template <class T>
double ulp(double x) {
  const int digits = sizeof(T) == 4 ? 24 : 8;
  int exponent = 0;
  std::frexp(x, &exponent);
  return std::ldexp(1.0, exponent - digits);
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

inline float f32(float x) { return x; }
inline float f32(muonrt::bf16 x) { return muonrt::to_f32(x); }

}  // namespace host_test
