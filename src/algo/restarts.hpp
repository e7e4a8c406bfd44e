#pragma once

#include <optional>
#include <vector>

#include "algo/coefficients.hpp"
#include "base/dtype.hpp"

namespace muonrt {

/// How the Gram form is simulated on scalars. Rounding of R = X X^T shifts its eigenvalues; where
/// one becomes negative it grows with every step until Q is lost, or X is rebuilt.
struct RestartSearch {
  double perturbation;  // subtracted from every eigenvalue of a new Gram matrix
  double bound;         // largest accepted condition number of Q
  double largest = 1;   // largest singular value
  int points = 4001;    // log-spaced in [1e-10, largest]
};

/// The search of a dtype: 0.8 units of storage roundoff (4e-4 in f16), and the bound that leaves
/// about a digit of the result; in f32, where a Gram matrix keeps its accumulation error, sixteen.
RestartSearch restart_search(const CoefficientList& list, DType dtype);

/// Worst max|q| / min|q| over all steps, infinity where Q is lost. Restarts as in Method::restarts.
/// Source: the restart selection of Gram Newton-Schulz (Dao-AILab); reference numerics, section 5.
double restart_metric(const CoefficientList& list, const std::vector<int>& restarts,
                      const RestartSearch& search);

/// The fewest restarts (at most 3) that keep the list under the bound, the best of that number;
/// nothing if none does.
std::optional<std::vector<int>> search_restarts(const CoefficientList& list,
                                                const RestartSearch& search);

/// The restarts the Gram form runs with in `dtype`.
/// Errors: NOT_SUPPORTED if none is bounded.
std::vector<int> find_restarts(const CoefficientList& list, DType dtype);

}  // namespace muonrt
