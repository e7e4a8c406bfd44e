#pragma once

#include <cstdint>

#include "backend/ops.hpp"

namespace muonrt::cuda {

/// A batch of matrices for TMA copies (CUtensorMap), with boxes of 64 columns by `box_rows` rows in
/// the 128-byte swizzle mode. Reads outside of a matrix return zeros. A store writes every 16-byte
/// chunk whose first element is inside the matrix.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

/// @param m  16-bit elements; data, ld and stride are multiples of 16 bytes.
/// Errors: NOT_SUPPORTED if the driver does not provide cuTensorMapEncodeTiled, DEVICE if that
/// function returns an error.
TensorMap make_tensor_map(const MatrixBatch& m, int box_rows);

}  // namespace muonrt::cuda
