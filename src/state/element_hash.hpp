#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "backend/health.hpp"
#include "base/hash.hpp"

namespace muonrt {

/// Returns the term of these elements in the hash of their parameter: the sum of
/// splitmix64(splitmix64(n + i) ^ b) over all elements, where i is the index of an element, b its
/// bits, and n the FNV-1a hash of the parameter's name. The sum wraps around, so terms may be added
/// in any order.
/// @param first  Index of the first element.
/// @param bytes  Size of an element, 4 or 2.
inline uint64_t hash_elements(std::string_view name, int64_t first,
                              std::span<const unsigned char> values, int64_t bytes) {
  Hash hash;
  hash.bytes(name);
  const uint64_t begin = hash.digest() + static_cast<uint64_t>(first);
  const auto sum = [&](auto bits) {
    uint64_t out = 0;
    for (size_t i = 0; i < values.size() / sizeof bits; ++i) {
      std::memcpy(&bits, values.data() + i * sizeof bits, sizeof bits);
      out += splitmix64(splitmix64(begin + i) ^ bits);
    }
    return out;
  };
  return bytes == 4 ? sum(uint32_t{}) : sum(uint16_t{});
}

}  // namespace muonrt
