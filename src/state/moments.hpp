#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace muonrt {

/// A moment whose value is invalid.
struct BadMoment {
  int64_t index;
  std::string problem;  // for example "is -1, but must be a finite number >= 0"
};

/// Returns the first invalid moment among these elements, or nullopt. Moments must be finite,
/// second moments must be at least 0, and before the first step all moments must be 0. Other kinds
/// of state are not checked.
/// @param dtype  "F32" or "BF16".
std::optional<BadMoment> bad_moment(int32_t kind, const std::string& dtype, int64_t step,
                                    std::span<const unsigned char> values);

}  // namespace muonrt
