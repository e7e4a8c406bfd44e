#pragma once

#include <vector>

#include "algo/coefficients.hpp"
#include "base/dtype.hpp"

namespace muonrt {

/// Longer lists are not searched; their Gram form restarts before every step.
constexpr int kMaxSearchedSteps = 12;

/// The limits of the search in a dtype.
struct RestartSearch {
  double perturbation = 4e-4;  // subtracted from every eigenvalue of a new Gram matrix
  double bound = 256;          // largest accepted condition number of Q
  double largest = 1;          // largest singular value
  int points = 4001;           // log-spaced in [1e-10, largest]
  /// Largest accepted error, as a multiple of the error of the standard form in bf16 on the same
  /// spectrum, or of 1 if that is less. Below 1, because predictions are not exact. f32: 2^-10,
  /// half the rounding of a message in bf16.
  double error = 0.8;
};

RestartSearch restart_search(const CoefficientList& list, DType dtype);

/// Returns the largest max|q| / min|q| over all steps, or infinity if q becomes 0 or is not finite.
/// It detects an eigenvalue of R = X X^T that rounding has made negative, which grows with every
/// step until X is rebuilt. Source: the restart selection of Dao-AILab/gram-newton-schulz.
double restart_metric(const CoefficientList& list, const std::vector<int>& restarts,
                      const RestartSearch& search);

/// Returns the restarts that the Gram form of `list` runs with in `dtype`: the fewest that keep its
/// predicted error (algo/rounding.hpp) within `error` times that of `standard` in bf16 on every
/// compared spectrum, and the condition number of Q within its bound; of equally many, those with
/// the smallest error. If no fewer do, X is rebuilt before every step, which is the standard form.
///
/// @param fewest  Rows of the smallest matrices for which the errors are compared.
std::vector<int> find_restarts(const CoefficientList& list, DType dtype,
                               const CoefficientList& standard, double fewest);

}  // namespace muonrt
