#pragma once

#include <cuda_runtime.h>

#include "cuda/elements.hpp"

namespace muonrt::cuda {

/// Deals the elements of a rectangle to the threads of a block: body.run<kWidth>(row, col) for
/// kWidth neighbours where `vectors`, body.run<1>(row, col) for what is left.
/// rows x cols is at most 2^30.
template <class Body>
__device__ inline void for_elements(int rows, int cols, bool vectors, Body& body) {
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int units = vectors ? cols / kWidth : 0;
  for (int unit = thread; unit < rows * units; unit += threads)
    body.template run<kWidth>(unit / units, unit % units * kWidth);
  const int first = units * kWidth, rest = cols - first;
  for (int each = thread; each < rows * rest; each += threads)
    body.template run<1>(each / rest, first + each % rest);
}

}  // namespace muonrt::cuda
