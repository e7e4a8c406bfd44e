#include "algo/spectrum.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace muonrt {

namespace {

/// If an off-diagonal element is below this fraction of the largest element, it is rounding noise.
/// The elements after it belong to another invariant subspace and are ignored.
constexpr double kRounding = 1e-6;

/// Counts the eigenvalues of a tridiagonal matrix that are below `at`. The matrix has `steps` rows.
/// Source: Golub and Van Loan, Matrix Computations, section 8.4.1 (Sturm sequences).
int64_t below(const Lanczos& t, int64_t steps, double at) {
  int64_t count = 0;
  double pivot = 1.0;
  for (int64_t i = 0; i < steps; ++i) {
    const double off_diagonal = i == 0 ? 0.0 : static_cast<double>(t.off_diagonal[i - 1]);
    pivot = static_cast<double>(t.diagonal[i]) - at - off_diagonal * off_diagonal / pivot;
    if (pivot == 0.0) pivot = -std::numeric_limits<double>::min();
    if (pivot < 0.0) ++count;
  }
  return count;
}

/// Returns the eigenvalue with this index in ascending order. Uses bisection.
double eigenvalue(const Lanczos& t, int64_t steps, int64_t index, double low, double high) {
  for (int halving = 0; halving < 100; ++halving) {
    const double middle = 0.5 * (low + high);
    (below(t, steps, middle) > index ? high : low) = middle;
  }
  return high;
}

}  // namespace

double Spectrum::deviation() const {
  const double down = 1.0 - smallest, up = largest - 1.0;
  return down > up || std::isnan(down) ? down : up;
}

Spectrum spectrum_of(const Lanczos& t, int64_t rows) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  double size = 0.0;
  int64_t steps = 0;
  for (const int64_t most = std::min(rows, kLanczosSteps); steps < most; ++steps) {
    const double diagonal = static_cast<double>(t.diagonal[steps]);
    const double before = steps == 0 ? 0.0 : static_cast<double>(t.off_diagonal[steps - 1]);
    if (!std::isfinite(diagonal) || !std::isfinite(before)) return {kNan, kNan};
    if (steps > 0 && before <= kRounding * size) break;
    size = std::max({size, std::fabs(diagonal), before});
  }
  if (steps == 0) return {kNan, kNan};
  const double bound = 3.0 * size + 1e-300;
  const double least = eigenvalue(t, steps, 0, -bound, bound);
  const double most = eigenvalue(t, steps, steps - 1, -bound, bound);
  return {std::sqrt(std::max(0.0, least)), std::sqrt(std::max(0.0, most))};
}

}  // namespace muonrt
