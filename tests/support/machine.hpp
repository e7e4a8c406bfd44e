#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "backend/device.hpp"
#include "backend/ops.hpp"
#include "support/numerics/noise.hpp"
#include "support/numerics/reference_ops.hpp"

// Runs ops on any device, so that tests can compare the results of two devices byte for byte.
namespace machines {

using test_support::bits_at;
using test_support::value_at;

/// Creates a host device.
std::unique_ptr<muonrt::Device> make_host(int threads = 1, bool portable_gemm = false);
/// Creates a host device with the elementwise ops of numerics/reference_ops.hpp.
std::unique_ptr<muonrt::Device> make_reference();
/// Creates a CUDA device for this program.
/// @param naive  If true, the device does not use cuBLASLt.
std::unique_ptr<muonrt::Device> make_device(bool naive = false, int index = 0);
/// Returns whether the environment variable MUONRT_TEST_NAIVE is set. Tests then do not use
/// cuBLASLt, because loading it under compute-sanitizer takes longer than running a small case.
bool without_vendor();
/// Returns whether the environment variable MUONRT_TEST_LEAVE_OUT names this kernel. If it does,
/// the tests do not use the kernel.
bool is_left_out(const char* kernel);

/// A device with one stream, and memory that is freed together with the device.
class Machine {
 public:
  explicit Machine(std::unique_ptr<muonrt::Device> made)
      : device(std::move(made)),
        stream(device->create_stream(muonrt::StreamKind::kCompute)),
        done_(device->create_event()) {}

  muonrt::Ops& ops() { return device->ops(); }
  muonrt::Stream& on() { return *stream; }
  void finish() {
    device->record(*done_, *stream);
    device->synchronize(*done_, muonrt::Deadline::in_ms(120000));
    if (const auto error = device->error()) throw muonrt::Error(*error);
  }

  /// Allocates device memory at an address that is `offset` bytes above a multiple of 256, and
  /// copies the values to it.
  template <class T>
  T* put(const std::vector<T>& values, int64_t offset = 0) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    if (bytes == 0) return nullptr;
    memory_.emplace_back(*device, bytes + offset);
    auto* at = memory_.back().template as<char>() + offset;
    const auto staging = muonrt::Buffer::shared(*device, bytes);
    std::memcpy(staging.data(), values.data(), static_cast<size_t>(bytes));
    ops().copy(*stream, at, staging.data(), bytes);
    finish();
    return reinterpret_cast<T*>(at);
  }
  template <class T>
  T* put_one(const T& value) {
    return put(std::vector<T>{value});
  }
  template <class T>
  std::vector<T> get(const T* from, int64_t count) {
    std::vector<T> out(static_cast<size_t>(count));
    const auto bytes = count * static_cast<int64_t>(sizeof(T));
    if (bytes == 0) return out;
    const auto staging = muonrt::Buffer::shared(*device, bytes);
    ops().copy(*stream, staging.data(), from, bytes);
    finish();
    std::memcpy(static_cast<void*>(out.data()), staging.data(), static_cast<size_t>(bytes));
    return out;
  }
  template <class T>
  T get_one(const T* from) {
    return get(from, 1)[0];
  }

  std::unique_ptr<muonrt::Device> device;
  std::unique_ptr<muonrt::Stream> stream;

 private:
  std::unique_ptr<muonrt::Event> done_;
  std::vector<muonrt::Buffer> memory_;
};

using Bytes = std::vector<unsigned char>;

/// Returns the index of the first byte that differs between two arrays, or -1 if they are equal.
inline int64_t difference(const Bytes& a, const Bytes& b) {
  const auto [at, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return at == a.end() && other == b.end() ? -1 : at - a.begin();
}
/// Returns the index of the first array that differs, or -1 if all arrays are equal.
inline int64_t difference(const std::vector<Bytes>& a, const std::vector<Bytes>& b) {
  const auto [at, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return at == a.end() && other == b.end() ? -1 : at - a.begin();
}

/// Sets element i of an array of `dtype` to `x`.
inline void set_value(Bytes& bytes, muonrt::DType dtype, int64_t i, float x) {
  reference_ops::store(bytes.data(), dtype, i, x);
}
inline float value_in(const Bytes& bytes, muonrt::DType dtype, int64_t i) {
  return reference_ops::load(bytes.data(), dtype, i);
}
/// Returns n pseudorandom elements with absolute values of at most `scale`.
inline Bytes values(uint64_t seed, muonrt::DType dtype, int64_t n, float scale = 1.0f) {
  Bytes out(static_cast<size_t>(n * muonrt::size_of(dtype)));
  for (int64_t i = 0; i < n; ++i) set_value(out, dtype, i, value_at(seed, i) * scale);
  return out;
}

}  // namespace machines
