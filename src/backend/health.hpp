#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "backend/host_device.hpp"

// Statistics of matrices, and hashes of memory. All backends share these formulas. All sums are
// integers, so their values do not depend on the order of additions.

namespace muonrt {

/// Number of 32-bit digits (limbs) of the multi-precision number that stores a sum of squares. This
/// number of limbs suffices for the squares of all f32 values.
constexpr int64_t kTallyLimbs = 18;

/// Sums over the elements of a matrix. The matrix must have fewer than 2^31 elements. The sums are
/// integers, so the sums of multiple parts of a matrix may be combined in any order.
struct Tally {
  int64_t limbs[kTallyLimbs] = {};  // sum of squares; the unit of limb i is 2^(32 i - 298)
  int64_t nonfinite = 0;            // number of elements that are infinite or NaN
  int64_t largest = 0;              // the largest |x| as f32 bits; combine parts with the maximum
};

/// A square as three consecutive limbs of the sum, beginning with `limb`.
struct LimbTerm {
  int32_t limb;
  int64_t low, middle, high;
};
/// Returns the square of x.
/// @param x  must be finite.
MUONRT_HOST_DEVICE inline LimbTerm limb_term(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), exponent = bits >> 23 & 0xffu;
  const uint64_t mantissa = (bits & 0x7fffffu) | (exponent == 0 ? 0u : 0x800000u);
  const uint32_t place = 2 * (exponent == 0 ? 0 : exponent - 1), shift = place & 31u;
  const uint64_t square = mantissa * mantissa;  // has at most 48 bits
  const uint64_t low = (square & 0xffffffffu) << shift;
  const uint64_t rest = ((square >> 32) << shift) + (low >> 32);
  return {static_cast<int32_t>(place >> 5), static_cast<int64_t>(low & 0xffffffffu),
          static_cast<int64_t>(rest & 0xffffffffu), static_cast<int64_t>(rest >> 32)};
}

/// Returns the sum of squares that the limbs represent.
inline double sum_of_squares(const int64_t* limbs) {
  double sum = 0.0;
  for (int64_t i = kTallyLimbs; i-- > 0;)
    sum += std::ldexp(static_cast<double>(limbs[i]), static_cast<int>(32 * i) - 298);
  return sum;
}

/// Number of steps of the Lanczos method. In measurements with up to 2048 rows, this number of
/// steps estimated both ends of the spectrum to within 5%. The spectra were flat, spread over nine
/// decades, or had only ten nonzero values.
constexpr int64_t kLanczosSteps = 48;
/// Number of rows in a block. Sums over rows are computed first within each block, and then over
/// the blocks.
constexpr int64_t kLanczosRows = 256;

/// The tridiagonal matrix that the Lanczos method computes for X X^T. Only the first min(rows,
/// kLanczosSteps) elements are used.
struct Lanczos {
  float diagonal[kLanczosSteps];
  float off_diagonal[kLanczosSteps];  // [i] is the element between i and i + 1
};

/// The layout of the workspace for one m x n matrix with m <= n. Offsets count f32 elements.
struct LanczosSpace {
  /// Sizes: (kLanczosSteps + 1) x m; m; n; (blocks of rows) x n.
  int64_t basis, image, product, partial;
  int64_t floats;
};
MUONRT_HOST_DEVICE inline LanczosSpace lanczos_space(int64_t m, int64_t n) {
  LanczosSpace s{};
  s.image = (kLanczosSteps + 1) * m;
  s.product = s.image + m;
  s.partial = s.product + n;
  s.floats = s.partial + (m + kLanczosRows - 1) / kLanczosRows * n;
  return s;
}

/// The output function of SplitMix64. Source: Steele et al. 2014, Fast Splittable Pseudorandom
/// Number Generators.
MUONRT_HOST_DEVICE inline uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

/// Returns element i of a start vector with m elements. All elements have the same magnitude and
/// pseudorandom signs.
MUONRT_HOST_DEVICE inline float lanczos_start(int64_t i, int64_t m) {
  const float size = 1.0f / sqrtf(static_cast<float>(m));
  return splitmix64(static_cast<uint64_t>(i)) & 1u ? size : -size;
}

/// Returns the term that the 32-bit word with this index adds to the hash of the memory.
MUONRT_HOST_DEVICE inline uint64_t hash_term(uint32_t word, int64_t index) {
  return splitmix64(splitmix64(static_cast<uint64_t>(index)) ^ word);
}

}  // namespace muonrt
