#pragma once

#include <cstdint>
#include <limits>

#include "base/error.hpp"

namespace muonrt {

/// Returns a * b for two sizes, which must be >= 0. Errors: INVALID_ARGUMENT if the product does
/// not fit into 63 bits.
inline int64_t checked_mul(int64_t a, int64_t b) {
  int64_t out = 0;
  MUONRT_REQUIRE(!__builtin_mul_overflow(a, b, &out), Status::kInvalidArgument, "size ", a, " x ",
                 b, " does not fit into 63 bits; split the parameter");
  return out;
}

/// Returns a + b for two sizes. Errors: INVALID_ARGUMENT if the sum does not fit into 63 bits.
inline int64_t checked_add(int64_t a, int64_t b) {
  int64_t out = 0;
  MUONRT_REQUIRE(!__builtin_add_overflow(a, b, &out), Status::kInvalidArgument, "size ", a, " + ",
                 b, " does not fit into 63 bits; split the parameter");
  return out;
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }
constexpr int64_t round_up(int64_t a, int64_t unit) { return ceil_div(a, unit) * unit; }

}  // namespace muonrt
