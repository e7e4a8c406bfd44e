#pragma once

#include <cmath>

#include "backend/ops.hpp"
#include "backend/update_rules.hpp"

// The formulas for scaling the input of Newton-Schulz. All backends share them.

namespace muonrt {

/// Returns the divisor for the elements of a matrix that have already been multiplied by up x up2.
/// @param norm  The norm of the matrix after this multiplication.
MUONRT_HOST_DEVICE inline float norm_divisor(float norm, const Normalization& how, float up,
                                             float up2) {
  const float divisor = how.safety * norm + how.added * up * up2;
  const float least = how.least * up * up2;
  return divisor < least ? least : divisor;
}

/// Returns the factor of a row. Source: Turbo-Muon, arXiv 2512.04632 (AOL).
/// @param sum  the sum of the absolute values in the corresponding row of X X^T.
MUONRT_HOST_DEVICE inline float row_factor(float sum, const AolRule& rule) {
  return 1.0f / (rule.safety * sqrtf(sum < rule.least ? rule.least : sum));
}

}  // namespace muonrt
