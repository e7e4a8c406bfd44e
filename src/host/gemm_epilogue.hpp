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

/// Rows of a tile that are rounded to `out`, each value as alpha * value + beta * d.
template <class C, class D>
struct TileRows {
  const float* values;
  int64_t values_ld, count, n;
  float alpha, beta;
  const D* d;  // null if beta is 0
  int64_t d_ld;
  C* out;
  int64_t out_ld;
  C* copy;  // a second output, with rows of kSmallTile elements; may be null
};

/// Rounds rows with the processor's instruction for bf16.
/// @return  False if the processor has no such instruction, or if a value is NaN or subnormal: the
///     instruction would round such a value differently. The rows must then be rounded again.
template <class D>
bool round_rows_natively(const TileRows<bf16, D>& rows);
extern template bool round_rows_natively(const TileRows<bf16, bf16>& rows);
extern template bool round_rows_natively(const TileRows<bf16, float>& rows);

/// Computes C = alpha tile + beta D + gamma I for rows of one tile, rounded once to the dtype of C.
/// If the product is symmetric, also writes the transposed elements. For a tile on the diagonal of
/// such a product, reads only the upper triangle of the tile; the first row must then be a multiple
/// of kTileSide.
/// @param tile  rows x cols, f32, dense; overwritten.
void store_tile(const GemmArgs& args, const TilePosition& position, float* tile);

/// Copies rows [begin, end) of a matrix to dense storage, and converts them to f32 if `to` is f32.
void copy_rows_dense(const ConstMatrixRef& from, DType to, void* dense, int64_t begin, int64_t end);

}  // namespace muonrt::host
