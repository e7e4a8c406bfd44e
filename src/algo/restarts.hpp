#pragma once

#include <optional>
#include <vector>

#include "algo/coefficients.hpp"
#include "base/dtype.hpp"

namespace muonrt {

/// How the Gram form is simulated on scalars, and what is accepted. Rounding of R = X X^T shifts
/// its eigenvalues; where one becomes negative it grows with every step until Q is lost, or X is
/// rebuilt.
struct RestartSearch {
  double perturbation = 4e-4;  // subtracted from every eigenvalue of a new Gram matrix
  double good = 256;           // condition number of Q that no further restart is spent on
  double bound = 256;          // largest accepted one, where none is good; >= good
  int longest = kMaxSteps;     // steps between two rebuilds
  double largest = 1;          // largest singular value
  int points = 4001;           // log-spaced in [1e-10, largest]
};

/// The search of a dtype. Half precision: the published 4e-4. f32: 1e-6, and up to 1e4 is accepted,
/// which stays below the rounding of a bf16 message. The condition number alone misleads: a
/// rounding of R grows with each step until the next rebuild. Measured over eight spectra (128 x
/// 256, Polar Express), largest error of the result after 2, 3, 4 steps: bf16 0.08, 0.5, 70; f32
/// 3e-5, 1.4e-4, 1.4e-3. So `longest` is 2 in bf16, 3 in f32, 4 in f16.
RestartSearch restart_search(const CoefficientList& list, DType dtype);

/// Worst max|q| / min|q| over all steps, infinity where Q is lost. Restarts as in Method::restarts.
/// Source: the restart selection of Dao-AILab/gram-newton-schulz.
double restart_metric(const CoefficientList& list, const std::vector<int>& restarts,
                      const RestartSearch& search);

/// The fewest restarts (at most 4) that are good, the best of that number; where none is good, the
/// best of all if it is under the bound.
std::optional<std::vector<int>> search_restarts(const CoefficientList& list,
                                                const RestartSearch& search);

/// The restarts the Gram form runs with in `dtype`.
/// Errors: NOT_SUPPORTED if none is bounded.
std::vector<int> find_restarts(const CoefficientList& list, DType dtype);

}  // namespace muonrt
