#pragma once

#include <vector>

#include "algo/coefficients.hpp"
#include "base/dtype.hpp"

namespace muonrt {

/// The maximum number of steps for which restarts are searched. With more steps, the Gram form
/// restarts before every step.
constexpr int kMaxSearchedSteps = 12;

/// The limits of a search, which depend on the dtype.
struct RestartSearch {
  double perturbation = 4e-4;  // subtracted from every eigenvalue of a new Gram matrix
  double bound = 256;          // largest condition number of Q that is accepted
  double largest = 1;          // largest singular value
  int points = 4001;           // number of log-spaced points in [1e-10, largest]
  /// The largest accepted error, relative to the error of the standard form in bf16 on the same
  /// spectrum, or to 1 if that error is greater than 1. The default is below 1 because predictions
  /// are not exact. For f32, the limit is 2^-10, which is half the rounding error of a message in
  /// bf16.
  double error = 0.8;
};

RestartSearch restart_search(const CoefficientList& list, DType dtype);

/// Returns the largest value of max|q| / min|q| over all steps, or infinity if q becomes 0,
/// infinite or NaN. Takes into account that rounding can make an eigenvalue of R = X X^T negative,
/// and that such an eigenvalue grows with every step until X is rebuilt. Source: the restart
/// selection of Dao-AILab/gram-newton-schulz.
double restart_metric(const CoefficientList& list, const std::vector<int>& restarts,
                      const RestartSearch& search);

/// Returns the restarts with which the Gram form of `list` runs in `dtype`. They satisfy two
/// conditions:
/// * On every compared spectrum, the predicted error (algo/rounding.hpp) is at most
///   RestartSearch::error times the error of `standard` in bf16.
/// * The condition number of Q is at most RestartSearch::bound.
///
/// If multiple lists of restarts satisfy both conditions, returns the shortest list, and among
/// lists of equal length the one with the smallest error. If a restart before every step is needed,
/// the Gram form is identical to the standard form.
///
/// @param fewest  Number of rows of the smallest matrices for which errors are compared.
std::vector<int> find_restarts(const CoefficientList& list, DType dtype,
                               const CoefficientList& standard, double fewest);

}  // namespace muonrt
