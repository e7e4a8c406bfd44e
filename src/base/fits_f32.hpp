#pragma once

#include <cmath>

namespace muonrt {

/// Whether a number is there as kernels take it, in f32: it neither overflows nor vanishes.
inline bool fits_f32(double value) {
  const auto taken = static_cast<float>(value);
  return std::isfinite(taken) && (taken != 0.0f || value == 0.0);
}

}  // namespace muonrt
