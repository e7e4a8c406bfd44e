#pragma once

#include <cuda_runtime.h>

#include "cuda/elements.hpp"

namespace muonrt::cuda {

/// work(row, col) for every row < rows and col < cols, each by one of `count` workers, in turn.
/// Steps by what it divides before the loop: on some devices a division is a call, which is dear,
/// and around which registers are spilled.
/// @param worker  which of them calls.
template <class Work>
__device__ inline void deal(unsigned worker, unsigned count, int rows, int cols, const Work& work) {
  if (cols == 0) return;
  const unsigned width = static_cast<unsigned>(cols);
  const int down = static_cast<int>(count / width), across = static_cast<int>(count % width);
  int row = static_cast<int>(worker / width), col = static_cast<int>(worker % width);
  while (row < rows) {
    work(row, col);
    row += down;
    col += across;
    if (col >= cols) {
      col -= cols;
      ++row;
    }
  }
}

/// The same to the threads of the block.
template <class Work>
__device__ inline void deal(int rows, int cols, const Work& work) {
  deal(threadIdx.x, blockDim.x, rows, cols, work);
}

/// Deals the elements of a rectangle to the threads of a block: body.run<kWidth>(row, col) for
/// kWidth neighbours where `vectors`, body.run<1>(row, col) for what is left.
/// rows x cols is at most 2^30.
template <class Body>
__device__ inline void for_elements(int rows, int cols, bool vectors, Body& body) {
  const int units = vectors ? cols / kWidth : 0;
  deal(rows, units, [&](int row, int unit) { body.template run<kWidth>(row, unit * kWidth); });
  const int first = units * kWidth;
  deal(rows, cols - first, [&](int row, int col) { body.template run<1>(row, first + col); });
}

}  // namespace muonrt::cuda
