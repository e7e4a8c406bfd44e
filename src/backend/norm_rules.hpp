#pragma once

#include <cmath>

#include "backend/ops.hpp"
#include "backend/update_rules.hpp"

// How the input of Newton-Schulz is scaled; shared by every backend, as update_rules.hpp is.

namespace muonrt {

/// What the entries of a matrix, multiplied by up x up2, are divided by.
/// @param norm  of the matrix so multiplied.
MUONRT_HOST_DEVICE inline float norm_divisor(float norm, const Normalization& how, float up,
                                             float up2) {
  const float divisor = how.safety * norm + how.added * up * up2;
  const float least = how.least * up * up2;
  return divisor < least ? least : divisor;
}

/// The factor of a row. Source: Turbo-Muon, arXiv 2512.04632 (AOL).
/// @param sum  of the absolute values of its row of X X^T.
MUONRT_HOST_DEVICE inline float row_factor(float sum, const AolRule& rule) {
  return 1.0f / (rule.safety * sqrtf(sum < rule.least ? rule.least : sum));
}

}  // namespace muonrt
