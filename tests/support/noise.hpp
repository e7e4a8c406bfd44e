#pragma once

#include <cstdint>

namespace test_support {

/// Numbers of both signs and many sizes, the same at every call.
inline float noise(int64_t i) {
  uint32_t x = static_cast<uint32_t>(i + 1) * 0x9e3779b1u;
  x ^= x >> 15;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  return static_cast<float>(x >> 8) / 8388608.0f - 1.0f;
}

}  // namespace test_support
