#pragma once

#include "backend/ops.hpp"
#include "cuda/kernels/elements.hpp"
#include "cuda/kernels/norm_tree.hpp"

// Functions that a warp uses to read a block of the norm's tree. A lane sums eight neighboring
// chains, so the 16 bytes of bf16 that a lane reads at once contain one element for each chain.

namespace muonrt::cuda {

constexpr int kLanes = 32;  // number of lanes of a warp
static_assert(kChains == kLanes * kWidth,
              "a lane has one chain for each element that it reads at once");

__device__ inline int lane() { return static_cast<int>(threadIdx.x % kLanes); }

/// Reads `count` elements one by one. The remaining elements of the result are zeros.
template <DType kIn>
__device__ inline Raw<kWidth> gathered(const void* data, int64_t index, int count) {
  Raw<kWidth> out = {};
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const uint32_t bits = i < count ? load<1>(data, kIn, index + i).bits : 0;
    if constexpr (kIn == DType::kF32) {
      (i < 4 ? out.low : out.high).word[i % 4] = bits;
    } else {
      out.low.word[i / 2] |= bits << 16 * (i % 2);
    }
  }
  return out;
}

/// Calls body.take<kIn>(eight), in order, for the elements of a warp's block that belong to the
/// lane's chains. Passes zeros after the last element. Each lane issues several loads (64 bytes)
/// before it uses the first result.
/// @param n  number of elements of the block, which begins at `index`.
template <DType kIn, class Body>
__device__ inline void for_chains(const void* data, int64_t index, int n, Body& body) {
  constexpr int kLoads = kIn == DType::kF32 ? 2 : 4;
  int i = lane() * kWidth;
  if (aligned(data, kIn, index)) {
    const int whole = n < i + kWidth ? 0 : (n - i - kWidth) / kChains + 1;
    for (int first = 0; first < whole; first += kLoads) {
      Raw<kWidth> raw[kLoads] = {};
#pragma unroll
      for (int k = 0; k < kLoads; ++k)
        if (first + k < whole) raw[k] = load<kWidth>(data, kIn, index + i + (first + k) * kChains);
#pragma unroll
      for (int k = 0; k < kLoads; ++k) body.template take<kIn>(raw[k]);
    }
    i += whole * kChains;
  }
#pragma unroll 1
  for (; i < n; i += kChains) body.template take<kIn>(gathered<kIn>(data, index + i, n - i));
}

/// Like the previous function, but for a block of the matrix `in`. The block begins at column
/// `begin` of the row at `row`. cuda_ops rejects dtypes that this function does not handle.
template <class Body>
__device__ inline void for_chains(const MatrixBatch& in, int64_t row, int64_t begin, Body& body) {
  const int64_t left = in.cols - begin;
  const int n = static_cast<int>(left < kBlockElements ? left : kBlockElements);
  if (in.dtype == DType::kF32) {
    for_chains<DType::kF32>(in.data, row + begin, n, body);
  } else {
    for_chains<DType::kBF16>(in.data, row + begin, n, body);
  }
}

}  // namespace muonrt::cuda
