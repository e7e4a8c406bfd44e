#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "layout/layout.hpp"

namespace muonrt {

/// A rectangle of a matrix in the local buffer of a rank. Element (i, j) of the block is element
/// (row + i, col + j) of the matrix, at local_offset + i * local_ld + j.
struct Block {
  int64_t row, col, rows, cols;    // place in the whole matrix; never empty
  int64_t local_offset, local_ld;  // elements; local_ld = cols if rows = 1
  int64_t numel() const { return rows * cols; }
  friend bool operator==(const Block&, const Block&) = default;
};

/// Returns the layout's shape as a matrix: N elements are 1 x N, a scalar is 1 x 1.
/// Errors: INVALID_ARGUMENT for more than 2 dims; view these with as_matrix, or as a stack.
std::pair<int64_t, int64_t> matrix_shape(const Layout& layout);

/// Returns the blocks of the matrix that `rank` holds, by ascending local offset, which is their
/// order in a message. They are disjoint and as large as possible: one for a contiguous shard, at
/// most three for a flat range. Empty if the rank holds nothing. Errors: as matrix_shape.
std::vector<Block> blocks_of(const Layout& layout, int rank);

/// The same for matrix `e` of a stack (E, rows, cols). Rows and columns are those of the matrix;
/// offsets count from the start of the local buffer. Errors: INVALID_ARGUMENT unless 3-D and 0 <= e
/// < E.
std::vector<Block> blocks_of_matrix(const Layout& stack, int rank, int64_t e);

/// Returns the intersection of `blocks` with the part `rows` x `cols` of the matrix, by ascending
/// local offset. Rows and columns of the result are positions in the two lists.
std::vector<Block> blocks_of_part(const std::vector<Block>& blocks, const Runs& rows,
                                  const Runs& cols);

}  // namespace muonrt
