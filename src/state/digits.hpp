#pragma once

#include <cstdint>
#include <string>

namespace muonrt {

/// Returns the last `count` digits of a number in the given base.
inline std::string digits_of(uint64_t value, size_t count, uint64_t base = 16) {
  std::string out(count, '0');
  for (size_t i = count; i-- > 0; value /= base) out[i] = "0123456789abcdef"[value % base];
  return out;
}

}  // namespace muonrt
