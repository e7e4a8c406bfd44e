#pragma once

#include <bit>
#include <cstdint>

namespace muonrt {

/// Element types. The values equal those of `muonrt_dtype_t`.
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

/// Rounds to nearest, ties to even. Every NaN becomes 0x7fff, as on GPUs, and overflow becomes
/// infinity.
constexpr bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return bf16{static_cast<uint16_t>(nan ? 0x7fffu : rounded)};
}

/// Storage of one IEEE binary16.
struct f16 {
  uint16_t bits;
};

constexpr float to_f32(f16 x) {
  const uint32_t sign = (x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
  // A binary16 value below 2^-14 is a multiple of 2^-24. From 2^-14 on, the conversion only changes
  // the bias of the exponent.
  const float small = static_cast<float>(static_cast<int32_t>(rest)) * 0x1p-24f;
  const uint32_t large = (rest << 13) + (rest < 0x7c00u ? 112u << 23 : 224u << 23);
  return std::bit_cast<float>((rest < 0x400u ? std::bit_cast<uint32_t>(small) : large) | sign);
}

/// Rounds to nearest, ties to even. Every NaN becomes 0x7fff, and values of at least 65520 become
/// infinity.
constexpr f16 to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
  // The last bit of the float 0.5 is worth 2^-24, so adding 0.5 rounds the value to a multiple of
  // 2^-24.
  const float half = std::bit_cast<float>(a < 0x38800000u ? a : 0u) + 0.5f;
  const uint32_t small = std::bit_cast<uint32_t>(half) - 0x3f000000u;
  const uint32_t normal = ((a + 0xfffu + (a >> 13 & 1u)) >> 13) - (112u << 10);
  const uint32_t finite = a < 0x38800000u ? small : normal;
  const uint32_t number = (a < 0x477ff000u ? finite : 0x7c00u) | sign;
  return f16{static_cast<uint16_t>(a > 0x7f800000u ? 0x7fffu : number)};
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
template <>
constexpr f16 from_f32<f16>(float x) {
  return to_f16(x);
}

}  // namespace muonrt
