#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace muonrt {

/// A moment with an invalid value.
struct BadMoment {
  int64_t index;
  std::string problem;  // "is -1, but must be a finite number >= 0"
};

/// Returns the first invalid moment of these elements, or nothing. Moments must be finite, second
/// moments at least 0, and all moments 0 before the first step. Other kinds of state are not
/// checked.
/// @param dtype  "F32" or "BF16".
std::optional<BadMoment> bad_moment(int32_t kind, const std::string& dtype, int64_t step,
                                    std::span<const unsigned char> values);

}  // namespace muonrt
