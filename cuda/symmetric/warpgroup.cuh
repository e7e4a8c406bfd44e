#pragma once

#include "cuda/symmetric/ptx_sm90.cuh"
#include "cuda/symmetric/ptx_wgmma.cuh"
#include "cuda/symmetric/tile_epilogue.cuh"

// Computes a warpgroup's part of a tile: the products of a stage, and the epilogue of the sums that
// wgmma computes. The part has 64 rows. Every 64 columns form a square, which consists of four
// strips of 16 columns. A thread holds eight sums of a strip, and computes four words from them.
// Each word contains two neighboring elements.

namespace muonrt::cuda {

constexpr int kSquare = 64;
constexpr int kStrips = kSquare / 16;
constexpr int kStripWords = 4;

/// Starts the products of 64 rows of A and kCols rows of B for one stage, as one group. If B is
/// MN-major, its kCols columns are in blocks of 64. When the function returns, the previous group
/// is complete.
/// @param a, b  addresses of the operands in shared memory.
/// @param adds  whether to add to the sums.
template <DType kElement, int kCols, Major kB = Major::kK, int kSums>
__device__ inline void multiply_group(float (&sums)[kSums], uint32_t a, uint32_t b, bool adds) {
  constexpr bool kMN = kB == Major::kMN;
  constexpr uint32_t kBlock = kSquare * kStageDepth * 2;
  constexpr int kColStep =
      kMN ? 16 * kSquare * 2 >> 4 : 2;  // of the descriptor, for 16 elements of depth
  const uint64_t rows = wgmma_descriptor(a),
                 cols = kMN ? wgmma_descriptor_mn(b, kBlock) : wgmma_descriptor(b);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kStageDepth / 16; ++step)
    wgmma<kElement, kCols, kB>(sums, rows + static_cast<uint64_t>(2 * step),
                               cols + static_cast<uint64_t>(kColStep * step), adds || step > 0);
  wgmma_commit();
  wgmma_wait<1>();
}

/// Each of these functions returns a byte offset in a swizzled 64 x 64 square: the position of the
/// row and chunk whose address this thread passes to `stmatrix` for a strip. The first two
/// functions are for the strip's straight copy, the third for its mirrored copy. In the straight
/// copy, the next strip is two chunks further, so the strip's number is XORed into the swizzled
/// offset. In the mirrored copy, it is 16 rows further.
__device__ inline int next_straight(int first_strip, int strip) {
  return first_strip ^ (strip << 5);
}
__device__ inline int straight_at(int strip) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const Offset2 first = stmatrix_straight(thread / 32, thread % 32, 0);
  return next_straight(swizzled128(first.row, first.col), strip);
}
__device__ inline int mirrored_at(int strip) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const Offset2 first = stmatrix_mirrored(thread / 32, thread % 32, 0);
  return swizzled128(first.row, first.col) + strip * 16 * 128;
}

constexpr int kNoDiagonal = -kSquare;
/// Returns the row index minus the column index of this thread's first sum in a square, if gamma is
/// added on the square's diagonal. Otherwise returns kNoDiagonal.
__device__ inline int below_diagonal(bool diagonal) {
  const Offset2 at = wgmma_c(static_cast<int>(threadIdx.x) % 128, 0);
  return diagonal ? at.row - at.col : kNoDiagonal;
}

/// Computes the words of a strip.
/// @param d  the swizzled 64 x 64 square of D in shared memory; used only if kAdds.
/// @param below  the result of below_diagonal for the square.
template <DType kElement, bool kAdds>
__device__ inline void finish_strip(uint32_t* words, const float* sums, const Scales& scales,
                                    const unsigned char* d, int strip, int below) {
  uint32_t added[kStripWords] = {};
  if constexpr (kAdds) {
    warp_sync();  // otherwise ptxas would load earlier and spill registers
    ldmatrix(added, d + straight_at(strip));
  }
  // A thread holds the rows r and r + 8 and the columns c, c + 1, c + 8 and c + 9 of a strip. Words
  // 0 and 3 are either both on the diagonal of the square or both off it. Words 1 and 2 are never
  // on the diagonal, because r and c differ by less than 8.
  const bool low = below == 16 * strip, high = below == 16 * strip + 1;
#pragma unroll
  for (int w = 0; w < kStripWords; ++w) {
    const bool may = w == 0 || w == 3;
    words[w] = finished<kElement, kAdds>(scales, added[w], sums[2 * w], sums[2 * w + 1], may && low,
                                         may && high);
  }
}

/// Computes the words of kCount strips of a square, starting with strip `first`.
template <DType kElement, bool kAdds, int kCount>
__device__ inline void finish_strips(uint32_t* words, const float* sums, const Scales& scales,
                                     const unsigned char* d, int first, int below) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    finish_strip<kElement, kAdds>(words + kStripWords * i, sums + 8 * i, scales, d, first + i,
                                  below);
}

/// Stores both copies of kCount strips of a square, from `first` on, in swizzled 64 x 64 squares in
/// shared memory. If kMirrors is false, stores only the straight copy, and computes the strips'
/// addresses again for each call. Otherwise the compiler would keep these addresses in registers
/// during the products of the next tile, and ptxas would serialize the products (warning C7511).
template <int kCount, bool kMirrors = true>
__device__ inline void stage_strips(const uint32_t* words, int first, unsigned char* straight,
                                    unsigned char* mirrored) {
  const int at = kMirrors ? straight_at(0) : not_hoisted(straight_at(0));
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint32_t* w = words + kStripWords * i;
    stmatrix(straight + next_straight(at, first + i), w[0], w[1], w[2], w[3]);
    if constexpr (kMirrors)
      stmatrix_trans(mirrored + mirrored_at(first + i), w[0], w[1], w[2], w[3]);
  }
}

/// Copies the lower half of a square on the diagonal from the transposed square.
__device__ inline void complete_diagonal(unsigned char* straight, const unsigned char* mirrored) {
  for (int i = static_cast<int>(threadIdx.x) % 128; i < kSquare * kSquare; i += 128) {
    const int row = i / kSquare, col = i % kSquare;
    const int at = swizzled128(row, col / kChunk) + col % kChunk * 2;
    if (row > col)
      *reinterpret_cast<uint16_t*>(straight + at) =
          *reinterpret_cast<const uint16_t*>(mirrored + at);
  }
}

/// Stores a square that is in shared memory and contains the result's last column. All threads of a
/// warpgroup must call this function.
template <bool kDense>
__device__ inline void store_edge(const SymmetricProblem& p, int64_t matrix, int first_row,
                                  int first_col, const unsigned char* staging) {
  constexpr int kChunks = kSquare / kChunk;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) % 128; i < kSquare * kChunks; i += 128) {
    const int row = i / kChunks, chunk = i % kChunks;
    store_chunk<kDense>(p, matrix, first_row + row, first_col + kChunk * chunk,
                        staging + swizzled128(row, chunk));
  }
}

}  // namespace muonrt::cuda
