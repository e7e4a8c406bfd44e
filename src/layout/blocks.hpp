#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "layout/layout.hpp"

namespace muonrt {

/// A rectangle of a matrix in a rank's local buffer. Element (i, j) of it is element
/// (row + i, col + j) of the matrix and lies at local_offset + i * local_ld + j.
struct Block {
  int64_t row, col, rows, cols;    // place in the whole matrix; never empty
  int64_t local_offset, local_ld;  // elements; local_ld = cols where rows = 1
  int64_t numel() const { return rows * cols; }
  friend bool operator==(const Block&, const Block&) = default;
};

/// What the layout is as a matrix: 2-D as it is, N elements as 1 x N, a scalar as 1 x 1.
/// Errors: INVALID_ARGUMENT for more than 2 dims: view it with as_matrix, or as a stack.
std::pair<int64_t, int64_t> matrix_shape(const Layout& layout);

/// All rectangles of the matrix that `rank` holds, by ascending local offset: the order of a
/// message. They are disjoint and as large as they can be: one for a contiguous shard, at most
/// three for a flat range of whole rows and columns. Empty for a rank that holds nothing. Errors:
/// as matrix_shape.
std::vector<Block> blocks_of(const Layout& layout, int rank);

/// The same for matrix `e` of a stack (E, rows, cols): places in that matrix, offsets into the
/// rank's whole local buffer. Errors: INVALID_ARGUMENT unless 3-D and 0 <= e < E.
std::vector<Block> blocks_of_matrix(const Layout& stack, int rank, int64_t e);

/// What of `blocks` lies in the part `rows` x `cols` of the matrix, placed within the part (row and
/// col become positions in the two lists), by ascending local offset.
std::vector<Block> blocks_of_part(const std::vector<Block>& blocks, const Runs& rows,
                                  const Runs& cols);

}  // namespace muonrt
