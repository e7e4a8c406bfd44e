#pragma once

#include <cuda_runtime.h>

#include "cuda/kernels/elements.hpp"

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

/// Deals the elements of a rectangle to the threads of a block: body.run<kWidth>(row, col, lanes)
/// for kWidth neighbours where `vectors`, body.run<1>(row, col, lanes) for what is left.
/// rows x cols is at most 2^30; a block has whole warps.
template <class Body>
__device__ inline void for_elements(int rows, int cols, bool vectors, Body& body) {
  constexpr int kWarp = 32;
  const int units = vectors ? cols / kWidth : 0;
  // Neighbours are dealt to neighbours. Where rows have an even number of them no pair is parted;
  // a warp is whole unless it has the last of them.
  const int paired = units % 2 == 0 ? rows * units - kWarp : -1;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  deal(rows, units, [&](int row, int unit) {
    const bool pairs = row * units + unit - lane <= paired;
    body.template run<kWidth>(row, unit * kWidth, pairs ? Lanes::kPairs : Lanes::kApart);
  });
  const int first = units * kWidth;
  deal(rows, cols - first,
       [&](int row, int col) { body.template run<1>(row, first + col, Lanes::kApart); });
}

}  // namespace muonrt::cuda
