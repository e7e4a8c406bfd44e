#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "base/dtype.hpp"

// Finds the largest |x| and the smallest |x| above zero among raw elements. Two bf16 values in a
// word are compared at once (with one instruction on compute capability 9.0). Only f32 and bf16 are
// supported.

namespace muonrt::cuda {

/// The extremes of the elements that a thread has read. The key of an element is its bits with the
/// sign bit set, minus one. Compared as unsigned numbers, the keys have the order of |x|. Compared
/// as signed numbers, they have the same order, except that the key of zero is the largest.
class Extremes {
 public:
  __device__ explicit Extremes(DType dtype) : largest_(zero(dtype)), least_(zero(dtype)) {}

  /// @param word  one f32 element, or two bf16 elements.
  template <DType kIn>
  __device__ void see(uint32_t word) {
    static_assert(kIn == DType::kF32 || kIn == DType::kBF16);
    const uint32_t set = word | kSign<kIn>, key = set - kOne<kIn>;
    if constexpr (kIn == DType::kF32) {
      largest_ = key > largest_ ? key : largest_;
      least_ = static_cast<int32_t>(key) < static_cast<int32_t>(least_) ? key : least_;
    } else {
      largest_ = __vmaxu2(largest_, key);
      least_ = __vmins2(least_, key);
    }
  }

  /// Returns the bits of the largest |x|, as f32.
  __device__ uint32_t largest(DType dtype) const {
    const Pair all = magnitudes(largest_, dtype);
    return all.high > all.low ? all.high : all.low;
  }
  /// Returns the negated f32 bits of the smallest |x| above zero, or zero if all elements are zero.
  /// To combine the results of several threads, take the maximum.
  __device__ uint32_t least_negated(DType dtype) const {
    const Pair all = magnitudes(least_, dtype);
    const uint32_t high = 0u - all.high, low = 0u - all.low;
    return high > low ? high : low;
  }

 private:
  struct Pair {
    uint32_t high, low;
  };
  template <DType kIn>
  static constexpr uint32_t kSign = kIn == DType::kF32 ? 0x80000000u : 0x80008000u;
  template <DType kIn>
  static constexpr uint32_t kOne = kIn == DType::kF32 ? 1u : 0x00010001u;

  __device__ static uint32_t zero(DType dtype) {
    return dtype == DType::kF32 ? 0x7fffffffu : 0x7fff7fffu;
  }
  __device__ static Pair magnitudes(uint32_t key, DType dtype) {
    if (dtype == DType::kF32) {
      const uint32_t bits = (key + kOne<DType::kF32>)&~kSign<DType::kF32>;
      return {bits, bits};
    }
    const uint32_t both = (key + kOne<DType::kBF16>)&~kSign<DType::kBF16>;
    return {both & 0xffff0000u, both << 16};
  }

  uint32_t largest_, least_;
};

}  // namespace muonrt::cuda
