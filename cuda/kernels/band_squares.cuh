#pragma once

#include "cuda/kernels/chains.cuh"
#include "cuda/kernels/norm_tree.hpp"
#include "cuda/kernels/rectangle.cuh"

// Computes the sum of squares of one band of a matrix in one thread block, with the summation tree
// of norm_tree.hpp. A body defines which values are squared: body.chain contains the sums of a
// lane's eight chains, and body.take<kIn>(eight) adds eight raw elements to these sums.

namespace muonrt::cuda {

constexpr int kSumThreads = 512;  // maximum; the sums do not depend on the number of threads
constexpr int kRound = 256;       // number of block sums that are computed before they are added
static_assert(kRound <= kSumThreads, "a thread for each sum of a round");

/// Repeatedly adds the upper half of a warp's chains to the lower half, until one sum is left. The
/// sum is valid in lane 0.
__device__ inline float halved(Values<kWidth> chain) {
#pragma unroll
  for (int width = kWidth / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) chain.x[i] += chain.x[i + width];
  float sum = chain.x[0];
#pragma unroll
  for (int width = kLanes / 2; width > 0; width /= 2)
    sum += __shfl_down_sync(0xffffffffu, sum, width);
  return sum;
}

/// Returns the sum of squares of one block of the tree. One warp computes it. The result is valid
/// in lane 0.
template <class Body>
__device__ inline float block_squares(const MatrixBatch& in, int64_t row, int64_t begin,
                                      Body& body) {
  body.chain = {};
  for_chains(in, row, begin, body);
  return halved(body.chain);
}

/// Adds `count` values in the order of PairwiseSum. The sum replaces the value of index 0. All
/// threads of the thread block must call this function.
/// @param mine  this thread's value, which has the index `index`. The value with the next index is
///     at mine + stride. A thread without a value passes the index `count`.
__device__ inline void add_pairwise(float* mine, int index, int count, int stride) {
  for (int step = 1; step < count; step *= 2) {
    if (index % (2 * step) == 0 && index + step < count) *mine += mine[step * stride];
    __syncthreads();
  }
}

/// Returns the sum of squares of `rows` x `blocks` blocks of a matrix, at most kRound blocks. The
/// first block begins at column `begin` of the row at `at`. The result is valid in thread 0.
template <class Body>
__device__ inline float round_squares(const MatrixBatch& in, int64_t at, int64_t begin, int rows,
                                      int blocks, Body& body) {
  __shared__ float sums[kRound];
  deal(threadIdx.x / kLanes, blockDim.x / kLanes, rows, blocks, [&](int row, int block) {
    const float sum = block_squares(in, at + row * in.ld, begin + block * kBlockElements, body);
    if (lane() == 0) sums[row * blocks + block] = sum;
  });
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / blocks, block = thread % blocks;
  add_pairwise(sums + thread, row < rows ? block : blocks, blocks, 1);
  add_pairwise(sums + thread, row < rows && block == 0 ? row : rows, rows, blocks);
  const float sum = sums[0];
  __syncthreads();
  return sum;
}

/// Returns the sum of a band. The sum is computed in rounds, each of which is a complete subtree: a
/// power of two of rows, or kRound blocks of a longer row. All threads of the thread block must
/// call this function. The result is valid in thread 0.
/// @param first  index of the matrix's first element.
template <class Body>
__device__ inline float band_squares(const MatrixBatch& in, int64_t first, int64_t band,
                                     Body& body) {
  const int64_t most_rows = rows_of_band(in.rows), begin = band * most_rows;
  const int64_t end = begin + most_rows < in.rows ? begin + most_rows : in.rows;
  const int64_t blocks = blocks_of_row(in.cols);
  int height = 1;
  while (2 * height * blocks <= kRound) height *= 2;
  if (blocks <= kRound && end - begin <= height)  // the usual case: a single round
    return round_squares(in, first + begin * in.ld, 0, static_cast<int>(end - begin),
                         static_cast<int>(blocks), body);
  PairwiseSum sum;  // adds the sums of all rounds of rows
  for (int64_t row = begin; row < end; row += height) {
    const int rows = static_cast<int>(end - row < height ? end - row : height);
    PairwiseSum rounds;  // adds the sums of all rounds of one long row
    for (int64_t block = 0; block < blocks; block += kRound) {
      const int width = static_cast<int>(blocks - block < kRound ? blocks - block : kRound);
      const float squares =
          round_squares(in, first + row * in.ld, block * kBlockElements, rows, width, body);
      if (threadIdx.x == 0) rounds.add(squares);
    }
    if (threadIdx.x == 0) sum.add(rounds.total());
  }
  return threadIdx.x == 0 ? sum.total() : 0.0f;
}

}  // namespace muonrt::cuda
