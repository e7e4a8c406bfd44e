#pragma once

#include <cstdint>

#include "base/dtype.hpp"

// Conversions of 16-bit elements. Each function is one instruction.

namespace muonrt::cuda {

template <DType kElement>
__device__ inline float widened(uint16_t bits) {
  static_assert(kElement == DType::kBF16 || kElement == DType::kF16);
  if constexpr (kElement == DType::kBF16) return __uint_as_float(uint32_t{bits} << 16);
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

/// Rounds two values to nearest, ties to even. The lower half of the result contains the first
/// value.
template <DType kElement>
__device__ inline uint32_t packed(float low, float high) {
  uint32_t word;
  if constexpr (kElement == DType::kBF16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

}  // namespace muonrt::cuda
