#pragma once

#include "host/gemm.hpp"

namespace muonrt::host {

/// The position of a finished tile in C.
struct TilePosition {
  int64_t row, col;    // of its first element
  int64_t rows, cols;  // its size
};

/// C = alpha tile + beta D + gamma I over one tile, rounded once to the dtype of C. If the product
/// is symmetric, the mirrored tile is written, too, and only the upper triangle of a tile on the
/// diagonal is used.
/// @param tile  rows x cols, f32, dense; overwritten.
void store_tile(const GemmArgs& args, const TilePosition& position, float* tile);

/// Copies rows [begin, end) of a matrix to dense storage, and widens them if `to` is f32.
void copy_rows_dense(const ConstMatrixRef& from, DType to, void* dense, int64_t begin, int64_t end);

}  // namespace muonrt::host
