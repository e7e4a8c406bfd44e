#pragma once

#include <bit>
#include <cstdint>

#include "backend/update_rules.hpp"

// Defines the fixed summation tree of the Frobenius norm. The host uses the same tree. A matrix is
// divided into at most 128 bands of rows, a row into blocks of 2048 elements, and a block into 256
// chains (element i belongs to chain i mod 256). A lane has eight neighboring chains, so it reads
// 16 bytes at once. Each lane adds the upper half of its chains to the lower half until one sum is
// left, and the sums of the 32 lanes are added in the same way. Blocks, rows and bands are added
// pairwise. Sums of squares are never -0. Zeros may therefore be added or omitted after the end of
// chains, blocks or rows without changing the results bitwise. This is plain C++ that is tested on
// the host.

namespace muonrt::cuda {

constexpr int kBands = 128;
constexpr int64_t kBlockElements = 2048;
constexpr int kChains = 256;

MUONRT_HOST_DEVICE inline int64_t rows_of_band(int64_t rows) {
  return (rows + kBands - 1) / kBands;
}
MUONRT_HOST_DEVICE inline int64_t bands_of(int64_t rows) {
  return (rows + rows_of_band(rows) - 1) / rows_of_band(rows);
}

MUONRT_HOST_DEVICE inline int64_t blocks_of_row(int64_t cols) {
  return (cols + kBlockElements - 1) / kBlockElements;
}

/// The pairwise sum of a stream of values. The tree depends only on the number of values.
class PairwiseSum {
 public:
  MUONRT_HOST_DEVICE void add(float value) {
    int level = 0;
    for (int64_t bit = count_; bit & 1; bit >>= 1) value = partial_[level++] + value;
    partial_[level] = value;
    ++count_;
  }
  MUONRT_HOST_DEVICE float total() const {
    float sum = 0.0f;
    for (int level = 0; count_ >> level; ++level)
      if (count_ >> level & 1) sum = partial_[level] + sum;
    return sum;
  }

 private:
  float partial_[40];  // partial_[l] is the sum of 2^l values if bit l of count_ is set
  int64_t count_ = 0;
};

/// Powers of two by which an element is multiplied, one after the other.
struct Scale {
  float up, up2;
};

/// Returns 2^exponent for -127 <= exponent <= 127.
MUONRT_HOST_DEVICE inline float power_of_two(int exponent) {
  return std::bit_cast<float>(exponent >= -126 ? static_cast<uint32_t>(exponent + 127) << 23
                                               : uint32_t{1} << 22);
}

/// Returns the scale that brings a matrix's largest entry into [1, 2). `largest_bits` contains the
/// bits of that entry, which must be finite and above zero. The scaling is exact. If one factor
/// would be too large for a float, the scale has two factors above 1. A factor that is too small
/// for a normal float is an exact subnormal.
MUONRT_HOST_DEVICE inline Scale scale_for(uint32_t largest_bits) {
  int exponent = static_cast<int>(largest_bits >> 23) - 127;  // exponent of the leading digit
  if (exponent == -127)
    for (exponent = -149; largest_bits >>= 1;) ++exponent;
  const int up = -exponent;
  const int first = up < 127 ? up : 127;
  return {power_of_two(first), power_of_two(up - first)};
}

/// Returns whether the elements' squares can be summed without scaling. Their sum is then bitwise
/// identical to the sum of the scaled elements' squares divided by the square of the scale.
/// Rounding commutes with multiplication by a power of two if the exact value is zero or a normal
/// number before and after scaling. Nothing cancels in sums of squares, so three conditions
/// suffice:
/// * Every square of a non-zero element is at least 2^-126: |x| >= 2^-63.
/// * The same is true after scaling, when the largest element is in [1, 2): exponents differ by at
///   most 63.
/// * No sum overflows. Up to 2^40 squares of |x| < 2^43 have a sum below 2^126, and fewer than 200
///   roundings cannot double it. Scaled squares are below 4, so their sums are smaller.
/// @param largest_bits  bits of the largest |x|: finite, above zero.
/// @param least_bits    bits of the smallest |x| above zero.
MUONRT_HOST_DEVICE inline bool sums_unscaled(uint32_t largest_bits, uint32_t least_bits) {
  constexpr uint32_t kBias = 127, kApart = 63;  // 2^-63 squared is the smallest normal number
  constexpr uint32_t kLeast = kBias - 63, kEnd = kBias + 43;
  const uint32_t largest = largest_bits >> 23, least = least_bits >> 23;
  return least >= kLeast && largest < kEnd && largest - least <= kApart;
}

}  // namespace muonrt::cuda
