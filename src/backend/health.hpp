#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "backend/host_device.hpp"

// Statistics of matrices and hashes of memory. All backends share these formulas. The sums are
// integers, so the order of additions does not change them.

namespace muonrt {

/// Words of 32 bits that hold every sum of squares of f32 values.
constexpr int64_t kTallyLimbs = 18;

/// Sums over the elements of a matrix, which must have fewer than 2^31 elements. All are integers,
/// so the tallies of parts of a matrix may be combined in any order.
struct Tally {
  int64_t limbs[kTallyLimbs] = {};  // of the squares: limb i counts 2^(32 i - 298)
  int64_t nonfinite = 0;            // elements that are infinite or NaN
  int64_t largest = 0;  // the largest |x|, as bits of an f32; combine parts by their maximum
};

/// A square, split over three consecutive limbs.
struct LimbTerm {
  int32_t limb;
  int64_t low, middle, high;
};
/// @param x  finite.
MUONRT_HOST_DEVICE inline LimbTerm limb_term(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), exponent = bits >> 23 & 0xffu;
  const uint64_t mantissa = (bits & 0x7fffffu) | (exponent == 0 ? 0u : 0x800000u);
  const uint32_t place = 2 * (exponent == 0 ? 0 : exponent - 1), shift = place & 31u;
  const uint64_t square = mantissa * mantissa;  // 48 bits
  const uint64_t low = (square & 0xffffffffu) << shift;
  const uint64_t rest = ((square >> 32) << shift) + (low >> 32);
  return {static_cast<int32_t>(place >> 5), static_cast<int64_t>(low & 0xffffffffu),
          static_cast<int64_t>(rest & 0xffffffffu), static_cast<int64_t>(rest >> 32)};
}

/// Returns the sum of squares that the limbs hold.
inline double sum_of_squares(const int64_t* limbs) {
  double sum = 0.0;
  for (int64_t i = kTallyLimbs; i-- > 0;)
    sum += std::ldexp(static_cast<double>(limbs[i]), static_cast<int>(32 * i) - 298);
  return sum;
}

/// Steps of Lanczos's method. They give the ends of the spectrum within 5% for spectra that are
/// flat, spread over nine decades, or zero except for ten values (measured with up to 2048 rows).
constexpr int64_t kLanczosSteps = 48;
/// Rows of a block: sums over rows are formed in each block and then over the blocks.
constexpr int64_t kLanczosRows = 256;

/// The tridiagonal matrix of X X^T. Elements after the first min(rows, kLanczosSteps) are unused.
struct Lanczos {
  float diagonal[kLanczosSteps];
  float off_diagonal[kLanczosSteps];  // [i]: between i and i + 1
};

/// Offsets, in f32 elements, inside the workspace for one m x n matrix with m <= n.
struct LanczosSpace {
  int64_t basis, image, product, partial;  // (kLanczosSteps + 1) x m; m; n; blocks of rows x n
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

/// Returns element i of the start vector of m elements: all have the same magnitude and a
/// pseudorandom sign.
MUONRT_HOST_DEVICE inline float lanczos_start(int64_t i, int64_t m) {
  const float size = 1.0f / sqrtf(static_cast<float>(m));
  return splitmix64(static_cast<uint64_t>(i)) & 1u ? size : -size;
}

/// Returns the term that word `index` of the memory adds to its hash.
MUONRT_HOST_DEVICE inline uint64_t hash_term(uint32_t word, int64_t index) {
  return splitmix64(splitmix64(static_cast<uint64_t>(index)) ^ word);
}

}  // namespace muonrt
