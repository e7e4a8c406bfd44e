#pragma once

#include <cstdint>

#include "backend/ops.hpp"

namespace muonrt::cuda {

/// A batch of matrices as the TMA copies see it (CUtensorMap): squares of 64 columns by `box_rows`
/// rows, in the 128-byte swizzle; zeros are read outside of a matrix. Stores write whole chunks of
/// 16 bytes of which the first element lies inside.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

/// @param m  16-bit elements; data, ld and stride at multiples of 16 bytes.
/// Errors: NOT_SUPPORTED if the driver has no function for it, DEVICE if it refuses.
TensorMap make_tensor_map(const MatrixBatch& m, int box_rows);

}  // namespace muonrt::cuda
