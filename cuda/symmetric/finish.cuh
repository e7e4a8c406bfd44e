#pragma once

#include "cuda/symmetric/problem.hpp"
#include "cuda/symmetric/ptx_half.cuh"

namespace muonrt::cuda {

/// Two neighbours of a row, from their sums to the bits that are stored: alpha acc + beta D + gamma
/// I in f32, one rounding. The order of the operations is the naive product's.
/// @param d  D's matrix of the batch; not read outside of the result.
template <DType kElement>
__device__ inline uint32_t finished(const SymmetricProblem& p, const uint16_t* d, int64_t row,
                                    int64_t col, float low, float high) {
  low *= p.alpha;
  high *= p.alpha;
  if (d && row < p.n) {
    const uint16_t* at = d + row * p.d_ld + col;
    if (col < p.n) low += p.beta * widened<kElement>(at[0]);
    if (col + 1 < p.n) high += p.beta * widened<kElement>(at[1]);
  }
  if (p.gamma != 0.0f && row == col) low += p.gamma;
  if (p.gamma != 0.0f && row == col + 1) high += p.gamma;
  return packed<kElement>(low, high);
}

}  // namespace muonrt::cuda
