#include "command/bench/bench_values.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

namespace muonrt::tool {

namespace {

constexpr int64_t kMaxThreads = 16, kLeastPart = 1 << 14;

template <class T>
T load_as(const void* from, int64_t index) {
  T out;
  std::memcpy(&out, static_cast<const unsigned char*>(from) + index * int64_t{sizeof(T)},
              sizeof(T));
  return out;
}

template <class T>
void store_as(void* to, int64_t index, float value) {
  const T rounded = from_f32<T>(value);
  std::memcpy(static_cast<unsigned char*>(to) + index * int64_t{sizeof(T)}, &rounded, sizeof(T));
}

}  // namespace

DType dtype_named(const std::string& name) {
  return name == "f32" ? DType::kF32 : name == "f16" ? DType::kF16 : DType::kBF16;
}

uint64_t bench_word(uint64_t seed, int64_t index) {
  uint64_t x = seed * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(index) + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

float bench_value(uint64_t seed, int64_t index) {
  constexpr int kParts = 4, kBits = 16;   // the 64 bits form four uniform numbers
  constexpr float kRootOf3 = 1.7320508f;  // the sum of the four has the variance 1/3
  const uint64_t word = bench_word(seed, index);
  int32_t sum = -(kParts * ((1 << kBits) - 1) / 2);
  for (int i = 0; i < kParts; ++i)
    sum += static_cast<int32_t>(word >> i * kBits & ((1 << kBits) - 1));
  // Because of the added quarter, no value is zero.
  return (static_cast<float>(sum) + 0.25f) * (kRootOf3 / (1 << kBits));
}

std::vector<unsigned char> bench_values(uint64_t seed, DType dtype, int64_t count) {
  std::vector<unsigned char> out(static_cast<size_t>(count * size_of(dtype)));
  in_parallel(count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) bench_store(out.data(), dtype, i, bench_value(seed, i));
  });
  return out;
}

float bench_load(const void* from, DType dtype, int64_t index) {
  if (dtype == DType::kF32) return load_as<float>(from, index);
  if (dtype == DType::kF16) return to_f32(load_as<f16>(from, index));
  return to_f32(load_as<bf16>(from, index));
}

void bench_store(void* to, DType dtype, int64_t index, float value) {
  if (dtype == DType::kF32) return store_as<float>(to, index, value);
  if (dtype == DType::kF16) return store_as<f16>(to, index, value);
  store_as<bf16>(to, index, value);
}

float bench_rounded(float value, DType dtype) {
  float stored = 0;
  bench_store(&stored, dtype, 0, value);
  return bench_load(&stored, dtype, 0);
}

double unit_of(DType dtype) {
  return dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kF16 ? 0x1p-12 : 0x1p-9;
}

void in_parallel(int64_t count, const std::function<void(int64_t begin, int64_t end)>& work) {
  const int64_t threads = std::clamp<int64_t>(
      std::min<int64_t>(std::thread::hardware_concurrency(), count / kLeastPart), 1, kMaxThreads);
  std::vector<std::jthread> others;
  for (int64_t i = 1; i < threads; ++i)
    others.emplace_back(
        [&, i] { work(count / threads * i, i + 1 < threads ? count / threads * (i + 1) : count); });
  work(0, threads > 1 ? count / threads : count);
}

}  // namespace muonrt::tool
