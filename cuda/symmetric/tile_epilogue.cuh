#pragma once

#include "cuda/kernels/elements.hpp"
#include "cuda/kernels/ptx_half.cuh"
#include "cuda/symmetric/layouts.hpp"
#include "cuda/symmetric/problem.hpp"

namespace muonrt::cuda {

/// The factors of a product, kept in registers. If the epilogue read them from the launch's
/// arguments, it would read them again for every element.
struct Scales {
  float alpha, beta, gamma;
};
__device__ inline Scales scales_of(const SymmetricProblem& p) { return {p.alpha, p.beta, p.gamma}; }

/// Computes the stored bits of two neighboring elements of a row from their sums: alpha sum + beta
/// D + gamma I in f32, rounded once. The operations have the same order as in the naive product.
/// @param added  the elements of D; used only if kAdds is true.
/// @param low_diagonal, high_diagonal  whether gamma is added to the element.
template <DType kElement, bool kAdds>
__device__ inline uint32_t finished(const Scales& scales, uint32_t added, float low, float high,
                                    bool low_diagonal, bool high_diagonal) {
  low *= scales.alpha;
  high *= scales.alpha;
  if constexpr (kAdds) {
    low += scales.beta * widened<kElement>(static_cast<uint16_t>(added));
    high += scales.beta * widened<kElement>(static_cast<uint16_t>(added >> 16));
  }
  if (low_diagonal) low += scales.gamma;
  if (high_diagonal) high += scales.gamma;
  return packed<kElement>(low, high);
}

/// Returns the number of rows of the result.
template <bool kDense>
__device__ inline int rows_of(const SymmetricProblem& p) {
  return kDense ? p.rows : p.n;
}

/// Stores the elements [from, to) of eight neighboring elements of a row of C. Skips elements
/// outside of the result.
/// @param chunk  the eight elements. Its address and its offset in the row are multiples of 16
///     bytes.
template <bool kDense = false>
__device__ inline void store_chunk(const SymmetricProblem& p, int64_t matrix, int row, int col,
                                   const void* chunk, int from = 0, int to = kChunk) {
  if (row >= rows_of<kDense>(p) || col >= p.n) return;
  uint16_t* c = p.c + matrix * p.c_stride + int64_t{row} * p.c_ld + col;
  if (from <= 0 && to >= kChunk && col + kChunk <= p.n) {
    store_vec16(c, *static_cast<const Vec16*>(chunk));
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i)
    if (i >= from && i < to && col + i < p.n) c[i] = static_cast<const uint16_t*>(chunk)[i];
}

}  // namespace muonrt::cuda
