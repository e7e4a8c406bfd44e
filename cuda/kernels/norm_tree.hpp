#pragma once

#include <bit>
#include <cstdint>

#include "backend/update_rules.hpp"

// The fixed tree of the Frobenius norm, the same as the host's: a matrix is cut into at most 128
// bands of rows, a row into blocks of 2048 elements, a block into 256 chains (element i in chain
// i mod 256); each eight neighbouring chains, a lane's, which so reads 16 bytes at once, are halved
// down to one value, then these 32; blocks, rows and bands are added pairwise. Sums of squares are
// never -0: where chains, blocks or rows end, zeros may be added or left out, the bits are the
// same. Plain C++, tested on the host.

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

/// Pairwise sum of a stream of values: a tree that follows from their number alone.
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
  float partial_[40];  // partial_[l] sums 2^l values where bit l of count_ is set
  int64_t count_ = 0;
};

/// Powers of two, to be applied one after the other.
struct Scale {
  float up, up2;
};

/// 2^exponent for -127 <= exponent <= 127.
MUONRT_HOST_DEVICE inline float power_of_two(int exponent) {
  return std::bit_cast<float>(exponent >= -126 ? static_cast<uint32_t>(exponent + 127) << 23
                                               : uint32_t{1} << 22);
}

/// Brings a largest entry with these bits (finite, above zero) into [1, 2). Exact: where one factor
/// is too large for a float, both steps only enlarge; one too small for a normal float is an exact
/// subnormal.
MUONRT_HOST_DEVICE inline Scale scale_for(uint32_t largest_bits) {
  int exponent = static_cast<int>(largest_bits >> 23) - 127;  // of the leading digit
  if (exponent == -127)
    for (exponent = -149; largest_bits >>= 1;) ++exponent;
  const int up = -exponent;
  const int first = up < 127 ? up : 127;
  return {power_of_two(first), power_of_two(up - first)};
}

/// Whether the squares of a matrix's elements as they are sum up, in the norm's tree, to what those
/// of its scaled elements do, divided by the scale squared, bit for bit. Rounding commutes with a
/// power of two where the exact value is zero or in the range of normal numbers, in both domains.
/// Nothing cancels in sums of squares, so it is enough that every square of a non-zero element
/// is at least 2^-126, as it is: |x| >= 2^-63; and scaled, where the largest is in [1, 2): the
/// exponents lie at most 63 apart; and that no sum overflows: of |x| < 2^43 and up to 2^40 elements
/// it is below 2^126, which fewer than 200 roundings on the way do not double. Scaled ones, of
/// squares below 4, are smaller.
/// @param largest_bits  of the largest |x|: finite, above zero.
/// @param least_bits    of the smallest |x| above zero.
MUONRT_HOST_DEVICE inline bool sums_unscaled(uint32_t largest_bits, uint32_t least_bits) {
  constexpr uint32_t kBias = 127, kApart = 63;  // 2^-63 squared is the smallest normal number
  constexpr uint32_t kLeast = kBias - 63, kEnd = kBias + 43;
  const uint32_t largest = largest_bits >> 23, least = least_bits >> 23;
  return least >= kLeast && largest < kEnd && largest - least <= kApart;
}

}  // namespace muonrt::cuda
