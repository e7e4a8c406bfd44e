#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace muonrt {

/// Maps f32 values to integers in the same order: -inf < ... < -0 < +0 < ... < +inf < every NaN.
/// The maximum of the integers corresponds to the maximum of the values, whatever the order of the
/// operands and the floating-point mode of the caller.
constexpr int32_t ordered_from_f32(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return std::numeric_limits<int32_t>::max();
  const uint32_t flipped = (u >> 31) ? u ^ 0x7fffffffu : u;
  return std::bit_cast<int32_t>(flipped);
}

/// Returns the value that ordered_from_f32() maps to `key`. For every NaN, returns the quiet NaN
/// 0x7fc00000.
constexpr float f32_from_ordered(int32_t key) {
  if (key == std::numeric_limits<int32_t>::max()) return std::bit_cast<float>(0x7fc00000u);
  const uint32_t u = std::bit_cast<uint32_t>(key);
  return std::bit_cast<float>(key < 0 ? u ^ 0x7fffffffu : u);
}

}  // namespace muonrt
