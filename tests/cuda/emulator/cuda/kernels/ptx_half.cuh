#pragma once

#include <bit>
#include <cstdint>

#include "base/dtype.hpp"

namespace muonrt::cuda {

/// Converts f16 to f32, which is exact. A NaN becomes the canonical NaN of GPUs, because no manual
/// states that the bits of a NaN are preserved.
inline float widened_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = bits >> 10 & 31u, mantissa = bits & 0x3ffu;
  if (exponent == 31 && mantissa != 0) return std::bit_cast<float>(0x7fffffffu);
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  const float magnitude = exponent == 0
                              ? static_cast<float>(mantissa) * 0x1p-24f
                              : std::bit_cast<float>((exponent + 112) << 23 | mantissa << 13);
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

/// Converts f32 to f16, rounding to nearest with ties to even.
inline uint16_t rounded_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  if (magnitude > 0x7f800000u) return 0x7fff;
  // Values from 65520 on, the midpoint between 65504 and 2^16, round to infinity.
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;
  if (magnitude < 0x38800000u) {  // the addition rounds subnormal results
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - 0x3f000000u);
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return sign | static_cast<uint16_t>((rounded >> 13) - (112u << 10));
}

template <DType kElement>
float widened(uint16_t bits) {
  return kElement == DType::kBF16 ? to_f32(bf16{bits}) : widened_f16(bits);
}

template <DType kElement>
uint32_t packed(float low, float high) {
  const auto rounded = [](float x) -> uint32_t {
    return kElement == DType::kBF16 ? to_bf16(x).bits : rounded_f16(x);
  };
  return rounded(low) | rounded(high) << 16;
}

}  // namespace muonrt::cuda
