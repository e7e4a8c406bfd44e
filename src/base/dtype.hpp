#pragma once

#include <bit>
#include <cstdint>

namespace muonrt {

/// Element types; the values are those of `muonrt_dtype_t`.
enum class DType : int32_t { kF32 = 1, kBF16 = 2, kF16 = 3 };

constexpr int64_t size_of(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
  }
  return "unknown";
}

/// Storage of one bfloat16: the upper half of an IEEE float32.
struct bf16 {
  uint16_t bits;
};

constexpr float to_f32(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
constexpr float to_f32(float x) { return x; }

/// Rounds to nearest, ties to even; NaN stays NaN (quiet), overflow becomes infinity.
constexpr bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return bf16{static_cast<uint16_t>(nan ? ((u >> 16) | 0x40u) : rounded)};
}

template <class T>
constexpr T from_f32(float x);
template <>
constexpr float from_f32<float>(float x) {
  return x;
}
template <>
constexpr bf16 from_f32<bf16>(float x) {
  return to_bf16(x);
}

}  // namespace muonrt
