#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace muonrt {

/// A moment that cannot be one.
struct BadMoment {
  int64_t index;
  std::string problem;  // "is -1 (a finite number >= 0)"
};

/// The first of these elements that no optimizer keeps: moments are finite, second moments >= 0,
/// and all zero before the first step. Nothing for a kind of state that holds no moments.
/// @param dtype  "F32" or "BF16".
std::optional<BadMoment> bad_moment(int32_t kind, const std::string& dtype, int64_t step,
                                    std::span<const unsigned char> values);

}  // namespace muonrt
