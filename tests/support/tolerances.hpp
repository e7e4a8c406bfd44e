#pragma once

#include <cmath>
#include <cstdint>

#include "base/dtype.hpp"

/// Every tolerance of the tests, with its reason. Promises about bits use memcmp instead.
namespace tolerance {

using muonrt::DType;

/// Half a unit in the last place at the bottom of a binade, relative: one rounding to `dtype`.
constexpr double roundoff(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0x1p-24;
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-11;
  }
  return 0;
}

/// One element of a product of `terms` terms: f32 sums in any order (each addition rounds once, and
/// the factors alpha and beta once more), then one rounding to storage.
/// @param magnitude  |alpha| |A| |B| + |beta| |D| + |gamma| at that element.
constexpr double product(int64_t terms, double magnitude, double result, DType storage) {
  return (static_cast<double>(terms) + 4) * 2 * roundoff(DType::kF32) * magnitude +
         roundoff(storage) * (result < 0 ? -result : result);
}

/// The same by tensor cores, which cut off and align inside a group of terms: four times f32's own
/// unit.
constexpr double tensor_product(int64_t terms, double magnitude, double result, DType storage) {
  return (static_cast<double>(terms) + 4) * 4 * roundoff(DType::kF32) * magnitude +
         roundoff(storage) * (result < 0 ? -result : result);
}

/// A generated coefficient against 60 digits, relative. While l/u < 0.9 the exchange is well
/// conditioned; nearer to 1 its four points merge and digits are lost, which the composite does not
/// notice. Source: the limit of the minimax problem, Polar Express, arXiv 2505.16932.
constexpr double generated(double l_over_u) { return l_over_u < 0.9 ? 1e-12 : 1e-5; }

/// A number printed with `decimals` decimals: half of the last, and the noise of the table's own
/// arithmetic.
inline double printed(int decimals) { return 0.51 * std::pow(10.0, -decimals); }

/// A result of Newton-Schulz in f32 against float64, any entry or u_i^T X v_j. The normalized input
/// and every iterate carry a rounding of at most 2^-24 of the largest singular value, and a
/// rounding grows by at most `gain` (reference::gain, for most lists the slope at zero).
inline double newton_schulz_f32(double gain) { return 2 * roundoff(DType::kF32) * gain; }

/// The same with the Gram form under searched restarts: roundings of R grow with the condition
/// number of Q, which the search holds near the gain or below.
inline double gram_f32(double gain) { return 4 * newton_schulz_f32(gain); }

/// An entry of a bf16 result, m x n with m <= n, of a matrix of full rank. Singular values that are
/// not small move by up to 0.2 (roundings of 2^-8, slopes of some ten); an entry averages over m of
/// them. Worst seen over the catalogue: 0.2 / sqrt(m).
inline double newton_schulz_bf16(int64_t m) { return 0.3 / std::sqrt(static_cast<double>(m)); }

/// Two results in half precision of the same list that round every iterate at the same places, and
/// add up in other orders: few roundings differ, by one unit in the last place. f16 has three more
/// bits. Worst seen in the standard form: a seventh of the distance to float64 that is allowed in
/// bf16, a sixth in f16. In the Gram form they pass through the condition number of Q: worst seen
/// 0.37 and 0.43 of it (near square, Polar Express).
inline double order_of_sums(DType dtype, bool gram, int64_t m) {
  const double to_float64 = newton_schulz_bf16(m) / (dtype == DType::kF16 ? 8 : 1);
  return gram ? to_float64 : to_float64 / 4;
}

/// u_i^T X v_j of a bf16 result with m = 128, null directions included, over the eight spectra of
/// newton_schulz_cases.hpp. Emulations: 2.3e-2 for the standard form, 4.5e-2 for the Gram
/// form; half as much again for Polar Express, whose slope at zero is twice Keller Jordan's, and
/// for entries off the diagonal.
constexpr double kSpectralBf16 = 6e-2, kSpectralGramBf16 = 9e-2;

/// The same for f16 storage: three more bits in the standard form; emulations of the Gram form:
/// 2.8e-2, twice that.
constexpr double kSpectralF16 = kSpectralBf16 / 8, kSpectralGramF16 = 5.6e-2;

/// u_i^T X v_j of a result in `dtype` for a list of any length, m = 128. The figures above are for
/// five steps, whose gain is 1000 at most; roundings in null directions grow with it.
inline double spectral(DType dtype, bool gram, double gain) {
  if (dtype == DType::kF32) return gram ? gram_f32(gain) : newton_schulz_f32(gain);
  const double longer = std::fmax(1.0, gain / 1000);
  if (dtype == DType::kF16) return longer * (gram ? kSpectralGramF16 : kSpectralF16);
  return longer * (gram ? kSpectralGramBf16 : kSpectralBf16);
}

/// The same on the diagonal, |u_i^T X v_i - p(s_i)|: what half precision is accepted
/// by, for m = 128 and for m >= 512: about twice what emulations of the published forms leave; in
/// f16, whose threshold is that of Keller Jordan's list, half as much again for lists of twice the
/// slope. They are meant for four times as many columns; of null directions fewer columns keep
/// more: at twice as many Polar Express exceeded 4e-2 in bf16 for 2 seeds in 15 (4.6e-2), at four
/// times it stayed below 2.9e-2.
inline double acceptance(DType dtype, bool gram, double gain, int64_t m = 128) {
  if (dtype == DType::kF32) return spectral(dtype, gram, gain);
  const double longer = std::fmax(1.0, gain / 1000);
  const bool large = m >= 512;
  if (dtype == DType::kBF16) return longer * (gram ? large ? 4e-2 : 9e-2 : large ? 1.5e-2 : 4e-2);
  if (gram) return longer * (large ? 3e-2 : 5e-2);
  return longer * (gain > 600 ? 1.5 : 1) * (large ? 2e-3 : 4e-3);
}

}  // namespace tolerance
