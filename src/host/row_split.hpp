#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/checked.hpp"
#include "plan/rank_chunk.hpp"

namespace muonrt::host {

// Divides a list of blocks (ShardBlock, MatrixBlock) into ranges of elements for threads. The
// elements of all blocks together form one sequence.

template <class Block>
int64_t count_elements(std::span<const Block> list) {
  int64_t sum = 0;
  for (const Block& each : list) sum += each.rows * each.cols;
  return sum;
}

/// Calls body(block, first row, end row) for the rows whose first element is in [begin, end) of the
/// sequence. Ranges that cover the sequence without overlap thus visit each row exactly once.
template <class Block, class Body>
void for_rows(std::span<const Block> list, int64_t begin, int64_t end, Body body) {
  int64_t base = 0;
  for (const Block& each : list) {
    const int64_t elements = each.rows * each.cols;
    if (elements > 0 && base < end && begin < base + elements) {
      const int64_t first = begin > base ? ceil_div(begin - base, each.cols) : 0;
      const int64_t last = std::min(each.rows, ceil_div(end - base, each.cols));
      if (first < last) body(each, first, last);
    }
    base += elements;
  }
}

/// Calls body(local offset, packed offset, count) for rows [first, end) of a block: once if the
/// rows are contiguous in the local buffer, and otherwise once for each row.
template <class Body>
void for_local_rows(const ShardBlock& block, int64_t first, int64_t end, Body body) {
  if (block.cols == block.local_ld) {
    const int64_t begin = first * block.cols;
    return body(block.local_offset + begin, block.packed_offset + begin,
                (end - first) * block.cols);
  }
  for (int64_t row = first; row < end; ++row)
    body(block.local_offset + row * block.local_ld, block.packed_offset + row * block.cols,
         block.cols);
}

}  // namespace muonrt::host
