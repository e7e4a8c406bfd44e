#pragma once

#include "backend/health.hpp"

namespace muonrt {

/// The smallest and the largest singular value of a matrix, estimated with the Lanczos method. Up
/// to rounding errors, the estimates are between the true values.
struct Spectrum {
  double smallest = 0, largest = 0;
  /// Returns the larger |sigma - 1| of the two values.
  double deviation() const;
};

/// Returns the spectrum of a matrix with `rows` rows and at least as many columns. The values are
/// NaN if `lanczos` has non-finite elements.
Spectrum spectrum_of(const Lanczos& lanczos, int64_t rows);

}  // namespace muonrt
