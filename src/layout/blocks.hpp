#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "layout/layout.hpp"

namespace muonrt {

/// A rectangle of a matrix that a rank holds. Element (i, j) of the block is element (row + i, col
/// + j) of the matrix, and is stored in the rank's local buffer at local_offset + i * local_ld + j.
struct Block {
  int64_t row, col, rows, cols;    // position in the whole matrix, and size; never empty
  int64_t local_offset, local_ld;  // in elements; local_ld equals cols if there is one row
  int64_t numel() const { return rows * cols; }
  friend bool operator==(const Block&, const Block&) = default;
};

/// Returns the shape of the layout as (rows, cols). A vector of N elements is 1 x N, and a scalar
/// is 1 x 1.
/// Errors: INVALID_ARGUMENT if there are more than 2 dims; use Layout::as_matrix() or a stack
/// instead.
std::pair<int64_t, int64_t> matrix_shape(const Layout& layout);

/// Returns the blocks of the matrix that `rank` holds, in ascending order of their local offsets,
/// which is also their order in a message. The blocks are disjoint and as large as possible: a
/// contiguous shard is one block, and a flat range consists of at most three. The list is empty if
/// the rank holds nothing.
/// Errors: the same as matrix_shape().
std::vector<Block> blocks_of(const Layout& layout, int rank);

/// Returns the blocks that `rank` holds of matrix `e` of a stack with shape (E, rows, cols). Row
/// and column indices refer to this matrix. Offsets count from the start of the stack's local
/// buffer.
/// Errors: INVALID_ARGUMENT if the stack is not 3-D or `e` is not in [0, E).
std::vector<Block> blocks_of_matrix(const Layout& stack, int rank, int64_t e);

/// Returns the intersection of `blocks` with a part of the matrix, in ascending order of local
/// offsets. The part consists of the rows and columns in the given lists. Rows and columns of the
/// returned blocks are positions in these lists.
std::vector<Block> blocks_of_part(const std::vector<Block>& blocks, const Runs& rows,
                                  const Runs& cols);

}  // namespace muonrt
