#pragma once

#include <cuda_runtime.h>

#include "cuda/kernels/elements.hpp"

namespace muonrt::cuda {

/// Calls function(row, col) once for every row < rows and col < cols, and distributes the calls to
/// `count` workers round-robin. The divisions precede the loop, because on some devices a division
/// is an expensive call that makes the compiler spill registers.
/// @param worker  index of the calling worker.
template <class Function>
__device__ inline void deal(unsigned worker, unsigned count, int rows, int cols,
                            const Function& function) {
  if (cols == 0) return;
  const unsigned width = static_cast<unsigned>(cols);
  const int down = static_cast<int>(count / width), across = static_cast<int>(count % width);
  int row = static_cast<int>(worker / width), col = static_cast<int>(worker % width);
  while (row < rows) {
    function(row, col);
    row += down;
    col += across;
    if (col >= cols) {
      col -= cols;
      ++row;
    }
  }
}

/// Like the previous function, but the workers are the threads of the thread block.
template <class Function>
__device__ inline void deal(int rows, int cols, const Function& function) {
  deal(threadIdx.x, blockDim.x, rows, cols, function);
}

/// Distributes the elements of a rectangle to the threads of a thread block. If `vectors` is set,
/// calls body.run<kWidth>(row, col, lanes) for each group of kWidth neighbors. Calls
/// body.run<1>(row, col, lanes) for the elements that are not in such a group. rows x cols must be
/// at most 2^30, and the thread block must consist of whole warps.
template <class Body>
__device__ inline void for_elements(int rows, int cols, bool vectors, Body& body) {
  constexpr int kWarp = 32;
  const int units = vectors ? cols / kWidth : 0;
  // Neighboring lanes process neighboring vectors. If rows have an even number of vectors, no pair
  // of vectors is split between rows. Only the warp with the last vectors may be incomplete.
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
