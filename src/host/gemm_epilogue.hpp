#pragma once

#include "host/gemm.hpp"

namespace muonrt::host {

/// The position of a completed tile in C.
struct TilePosition {
  int64_t row, col;    // position of its first element
  int64_t rows, cols;  // size of the tile
};

/// Computes C = alpha tile + beta D + gamma I for one tile, rounded once to the dtype of C. If the
/// product is symmetric, also writes the mirrored tile, and uses only the upper triangle of a tile
/// on the diagonal.
/// @param tile  rows x cols, f32, dense; overwritten.
void store_tile(const GemmArgs& args, const TilePosition& position, float* tile);

/// Copies rows [begin, end) of a matrix to dense storage, and converts them to f32 if `to` is f32.
void copy_rows_dense(const ConstMatrixRef& from, DType to, void* dense, int64_t begin, int64_t end);

}  // namespace muonrt::host
