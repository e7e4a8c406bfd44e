#pragma once

#include <cmath>
#include <cstdint>

#include "base/dtype.hpp"

/// All tolerances of the tests, each with its reason. Tests of bitwise identity use memcmp instead.
namespace tolerance {

using muonrt::DType;

/// Returns the relative error of rounding to `dtype` once: half a unit in the last place, relative
/// to the smallest number with the same exponent.
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

/// Returns the tolerance for one element of a product that sums `terms` terms. The terms are summed
/// in f32 in any order. Each addition, alpha and beta cause one rounding each, and the result is
/// rounded once to its dtype.
/// @param magnitude  |alpha| |A| |B| + |beta| |D| + |gamma| for this element.
constexpr double product(int64_t terms, double magnitude, double result, DType storage) {
  return (static_cast<double>(terms) + 4) * 2 * roundoff(DType::kF32) * magnitude +
         roundoff(storage) * (result < 0 ? -result : result);
}

/// Returns the tolerance for the same product on tensor cores. Tensor cores align the terms of a
/// group and truncate them, so the unit in the last place is four times that of f32.
constexpr double tensor_product(int64_t terms, double magnitude, double result, DType storage) {
  return (static_cast<double>(terms) + 4) * 4 * roundoff(DType::kF32) * magnitude +
         roundoff(storage) * (result < 0 ? -result : result);
}

/// Returns the relative tolerance for comparing a generated coefficient with a computation in 60
/// digits. If the bounds of the interval [l, u] satisfy l/u < 0.9, the Remez exchange is well
/// conditioned. If l/u is closer to 1, the four points of the exchange merge and digits are lost,
/// but the composition of all steps is still accurate. Source: the limit of the minimax problem,
/// Polar Express, arXiv 2505.16932.
constexpr double generated(double l_over_u) { return l_over_u < 0.9 ? 1e-12 : 1e-5; }

/// Returns the tolerance for a number from a published table with `decimals` decimal places. It
/// covers half a unit in the last decimal place, and the rounding errors of the computation behind
/// the table.
inline double printed(int decimals) { return 0.51 * std::pow(10.0, -decimals); }

/// Returns the tolerance of a Newton-Schulz result in f32 against float64, for any entry and any
/// u_i^T X v_j. The normalized input and every iterate have a rounding error of at most 2^-24 of
/// the largest singular value. Each error grows by at most `gain` (reference::gain). For most
/// lists, this is the slope at zero.
inline double newton_schulz_f32(double gain) { return 2 * roundoff(DType::kF32) * gain; }

/// Returns the tolerance of a Newton-Schulz result in f32 if it uses the Gram form with searched
/// restarts. Rounding errors of R grow with the condition number of Q. The search for restarts
/// keeps this condition number near the gain or below it.
inline double gram_f32(double gain) { return 4 * newton_schulz_f32(gain); }

/// Returns the tolerance for an entry of a bf16 result. The input is an m x n matrix of full rank
/// with m <= n. Singular values that are not small move by up to 0.2 (rounding errors of 2^-8,
/// slopes of a few tens), and an entry averages over m such values. The largest error over the
/// catalogue is 0.2 / sqrt(m).
inline double newton_schulz_bf16(int64_t m) { return 0.3 / std::sqrt(static_cast<double>(m)); }

/// Returns the tolerance between two results in half precision that use the same list and round the
/// same iterates, but add terms in different orders. Few roundings then differ, each by one unit in
/// the last place. f16 has three more bits than bf16. In the standard form, the largest measured
/// distance is 1/7 (bf16) or 1/6 (f16) of the tolerance against float64. In the Gram form, the
/// condition number of Q amplifies the differences. There the largest distance is 0.37 (bf16) or
/// 0.43 (f16) of that tolerance, for nearly square matrices with Polar Express.
inline double order_of_sums(DType dtype, bool gram, int64_t m) {
  const double to_float64 = newton_schulz_bf16(m) / (dtype == DType::kF16 ? 8 : 1);
  return gram ? to_float64 : to_float64 / 4;
}

/// The tolerance of u_i^T X v_j for a bf16 result with m = 128. It holds for the eight spectra of
/// newton_schulz_cases.hpp, including null directions. Emulations reach 2.3e-2 in the standard form
/// and 4.5e-2 in the Gram form. Entries off the diagonal, and Polar Express, need a tolerance that
/// is 1.5 times as large. The slope of Polar Express at zero is twice as large as the slope of
/// Keller Jordan's list.
constexpr double kSpectralBf16 = 6e-2, kSpectralGramBf16 = 9e-2;

/// The same tolerances for f16. In the standard form, the tolerance is 1/8 of the one for bf16,
/// because f16 has three more bits. In the Gram form, emulations reach 2.8e-2, and the tolerance is
/// twice this error.
constexpr double kSpectralF16 = kSpectralBf16 / 8, kSpectralGramF16 = 5.6e-2;

/// Returns the tolerance of u_i^T X v_j for a result in `dtype` and a list of any length, with m =
/// 128. The constants above hold for lists of five steps, whose gain is at most 1000. With longer
/// lists, rounding errors in null directions grow in proportion to the gain.
inline double spectral(DType dtype, bool gram, double gain) {
  if (dtype == DType::kF32) return gram ? gram_f32(gain) : newton_schulz_f32(gain);
  const double longer = std::fmax(1.0, gain / 1000);
  if (dtype == DType::kF16) return longer * (gram ? kSpectralGramF16 : kSpectralF16);
  return longer * (gram ? kSpectralGramBf16 : kSpectralBf16);
}

/// Returns the tolerance for |u_i^T X v_i - p(s_i)|. The acceptance tests use it for results in
/// half precision with m = 128 and m >= 512. The tolerance is about twice the error of emulations
/// of the published forms. In f16, it is derived from Keller Jordan's list, and is 1.5 times as
/// large for lists with twice the slope. The matrix must have at least four times as many columns
/// as rows, because errors in null directions are larger with fewer columns. With twice as many
/// columns as rows, Polar Express in bf16 exceeded 4e-2 for 2 of 15 seeds (4.6e-2). With four times
/// as many columns, its error stayed below 2.9e-2.
inline double acceptance(DType dtype, bool gram, double gain, int64_t m = 128) {
  if (dtype == DType::kF32) return spectral(dtype, gram, gain);
  const double longer = std::fmax(1.0, gain / 1000);
  const bool large = m >= 512;
  if (dtype == DType::kBF16) return longer * (gram ? large ? 4e-2 : 9e-2 : large ? 1.5e-2 : 4e-2);
  if (gram) return longer * (large ? 3e-2 : 5e-2);
  return longer * (gain > 600 ? 1.5 : 1) * (large ? 2e-3 : 4e-3);
}

}  // namespace tolerance
