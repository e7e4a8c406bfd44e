#pragma once

#include "backend/health.hpp"

namespace muonrt {

/// Ends of a matrix's singular values, as Lanczos's method sees them: from inside, so the smallest
/// is never too small nor the largest too large, but for rounding.
struct Spectrum {
  double smallest = 0, largest = 0;
  /// The largest |sigma - 1|.
  double deviation() const;
};

/// Of a matrix with `rows` rows, its short side. NaN where the matrix has such.
Spectrum spectrum_of(const Lanczos& lanczos, int64_t rows);

}  // namespace muonrt
