#pragma once

#include "base/checked.hpp"
#include "base/dtype.hpp"

namespace muonrt::cuda {

/// The leading dimension of matrices of our own: rows begin on multiples of 64 bytes.
constexpr int64_t padded_ld(int64_t cols, DType dtype) {
  return round_up(cols, 64 / size_of(dtype));
}

}  // namespace muonrt::cuda
