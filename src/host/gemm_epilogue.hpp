#pragma once

#include "host/gemm.hpp"

namespace muonrt::host {

/// Where a finished tile belongs in C.
struct TilePosition {
  int64_t row, col;    // of its first element
  int64_t rows, cols;  // its size
};

/// C = alpha tile + beta D + gamma I over one tile, rounded once to the dtype of C. If the product
/// is symmetric, also the mirrored tile; a tile on the diagonal then gives only its upper triangle.
/// @param tile  rows x cols, f32, dense; overwritten.
void store_tile(const GemmArgs& args, const TilePosition& position, float* tile);

/// Copies a matrix to dense storage, widening to f32 where `to` is; rows [begin, end).
void copy_rows_dense(const ConstMatrixRef& from, DType to, void* dense, int64_t begin, int64_t end);

}  // namespace muonrt::host
