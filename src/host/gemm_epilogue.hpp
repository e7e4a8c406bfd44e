#pragma once

#include "host/gemm.hpp"

namespace muonrt::host {

/// Number of rows and columns of the blocks in which tiles on the diagonal are stored. With this
/// size, the rows stay in the L1 cache until both halves are written, and a transposed row of f32
/// fills a cache line.
constexpr int64_t kTileSide = 16;

/// The position in C of completed rows of a tile.
struct TilePosition {
  int64_t row, col;  // position of the first element
  int64_t rows, cols;
};

/// Computes C = alpha tile + beta D + gamma I for rows of one tile, rounded once to the dtype of C.
/// If the product is symmetric, also writes the transposed elements. For a tile on the diagonal of
/// such a product, reads only the upper triangle of the tile; the first row must then be a multiple
/// of kTileSide.
/// @param tile  rows x cols, f32, dense; overwritten.
void store_tile(const GemmArgs& args, const TilePosition& position, float* tile);

/// Copies rows [begin, end) of a matrix to dense storage, and converts them to f32 if `to` is f32.
void copy_rows_dense(const ConstMatrixRef& from, DType to, void* dense, int64_t begin, int64_t end);

}  // namespace muonrt::host
