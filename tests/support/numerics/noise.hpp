#pragma once

#include <cstdint>

namespace test_support {

/// Returns a number that depends only on i. The numbers vary in sign and magnitude.
inline float noise(int64_t i) {
  uint32_t x = static_cast<uint32_t>(i + 1) * 0x9e3779b1u;
  x ^= x >> 15;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  return static_cast<float>(x >> 8) / 8388608.0f - 1.0f;
}

/// Returns pseudorandom bits that depend on (seed, index).
inline uint64_t bits_at(uint64_t seed, int64_t index) {
  uint64_t x = seed * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(index);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// Returns a value in [-1, 1) that is a multiple of 2^-23.
inline float value_at(uint64_t seed, int64_t index) {
  return static_cast<float>(static_cast<int64_t>(bits_at(seed, index) >> 40) - (1 << 23)) *
         0x1p-23f;
}

}  // namespace test_support
