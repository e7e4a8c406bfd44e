#pragma once

#include <cmath>

namespace muonrt {

/// Returns true if `value` neither overflows nor becomes 0 when it is converted to f32 for a
/// kernel.
inline bool fits_f32(double value) {
  const auto converted = static_cast<float>(value);
  return std::isfinite(converted) && (converted != 0.0f || value == 0.0);
}

}  // namespace muonrt
