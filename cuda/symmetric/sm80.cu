// Symmetric products on compute capability 8.0 and later: C = alpha A B^T + beta D + gamma I,
// 16-bit elements, f32 sums.
//
// A thread block computes a cell of 128 x 128, or one slice of its depth, with 8 warps, 2 down and
// 4 across, of 64 x 32 each. Operands are copied 32 deep through a ring of kStages in shared memory
// (cp.async, rows of 64 bytes in the swizzle of layouts.hpp, read with ldmatrix, multiplied with
// mma.sync). The rounded result is stored twice from the same registers, through shared memory:
// straight and mirrored. Slices store their sums in f32, and `finish_kernel` adds them in order.

#include "cuda/device/launch.hpp"
#include "cuda/symmetric/kernels.hpp"
#include "cuda/symmetric/layouts.hpp"
#include "cuda/symmetric/ptx_sm80.cuh"
#include "cuda/symmetric/tile_epilogue.cuh"

namespace muonrt::cuda {

namespace {

struct Config {
  static constexpr int kThreads = 256;
  static constexpr int kDepth = 32;  // of a stage
  static constexpr int kStages = 4;
  static constexpr int kOperandBytes = kCell * kDepth * 2;
  static constexpr int kStageBytes = 2 * kOperandBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static constexpr int kWarpRows = 64, kWarpCols = 32;
  static constexpr int kDown = kWarpRows / 16, kAcross = kWarpCols / 8;
  // Row length of the staged tile: 16 bytes more, so that columns use different banks.
  static constexpr int kPitch = kCell + kChunk;
};
static_assert(Config::kThreads == 32 * (kCell / Config::kWarpRows) * (kCell / Config::kWarpCols));
static_assert(kCell * Config::kPitch * 2 <= Config::kSharedBytes);
static_assert(kPartialFloats == kCell * kCell);

/// Sums of a thread, in the order of mma_c for each 16 x 8 of its warp.
using Sums = float[Config::kDown][Config::kAcross][4];

__device__ inline int warp_row() { return static_cast<int>(threadIdx.x) / 32 % 2; }
__device__ inline int warp_col() { return static_cast<int>(threadIdx.x) / 64; }
__device__ inline int lane() { return static_cast<int>(threadIdx.x) % 32; }

/// The part of one operand that a thread copies in each stage: two chunks, 64 rows apart.
class Loader {
 public:
  __device__ Loader(const uint16_t* matrix, int ld, int first_row, int n) {
    for (int i = 0; i < 2; ++i) {
      const int row = first_row + row_of(i);
      inside_[i] = row < n;
      from_[i] = matrix + (inside_[i] ? int64_t{row} * ld : 0);
    }
  }
  /// Copies elements [k, k + kDepth) of every row, with zeros from `end` on.
  __device__ void load(unsigned char* to, int k, int end) const {
    const int at = k + kChunk * chunk(), left = end - at;
    for (int i = 0; i < 2; ++i) {
      const int count = inside_[i] && left > 0 ? (left < kChunk ? left : kChunk) : 0;
      copy_async(to + swizzled64(row_of(i), chunk()), count > 0 ? from_[i] + at : from_[i],
                 2 * count);
    }
  }

 private:
  __device__ static int row_of(int i) { return static_cast<int>(threadIdx.x) / 4 + 64 * i; }
  __device__ static int chunk() { return static_cast<int>(threadIdx.x) % 4; }
  const uint16_t* from_[2];
  bool inside_[2];
};

/// sums += A B^T over one stage.
template <DType kElement>
__device__ inline void multiply_stage(Sums& sums, const unsigned char* a, const unsigned char* b) {
  const Offset2 in_a = ldmatrix_a(lane()), in_b = ldmatrix_b(lane());
  const int a_row = warp_row() * Config::kWarpRows + in_a.row;
  const int b_row = warp_col() * Config::kWarpCols + in_b.row;
#pragma unroll
  for (int step = 0; step < Config::kDepth / 16; ++step) {
    uint32_t rows[Config::kDown][4], cols[Config::kAcross / 2][4];
#pragma unroll
    for (int i = 0; i < Config::kDown; ++i)
      ldmatrix(rows[i], a + swizzled64(a_row + 16 * i, 2 * step + in_a.col));
#pragma unroll
    for (int j = 0; j < Config::kAcross / 2; ++j)
      ldmatrix(cols[j], b + swizzled64(b_row + 16 * j, 2 * step + in_b.col));
#pragma unroll
    for (int i = 0; i < Config::kDown; ++i)
#pragma unroll
      for (int j = 0; j < Config::kAcross; ++j)
        multiply_add<kElement>(sums[i][j], rows[i], cols[j / 2][2 * (j % 2)],
                               cols[j / 2][2 * (j % 2) + 1]);
  }
}

/// Computes the job's sums over its slice of the depth.
template <DType kElement>
__device__ inline void multiply_job(Sums& sums, const SymmetricProblem& p, const TileJob& job,
                                    unsigned char* ring) {
  const bool once = p.same && job.row == job.col;
  const Loader a(p.a + job.matrix * p.a_stride, p.a_ld, job.row * kCell, p.n);
  const Loader b(p.b + job.matrix * p.b_stride, p.b_ld, job.col * kCell, p.n);
  const int blocks = (p.k + Config::kDepth - 1) / Config::kDepth;
  const int begin = static_cast<int>(int64_t{blocks} * job.slice / p.slices);
  const int end = static_cast<int>(int64_t{blocks} * (job.slice + 1) / p.slices);
  const auto load = [&](int block) {
    if (block < end) {
      unsigned char* to = ring + (block - begin) % Config::kStages * Config::kStageBytes;
      a.load(to, block * Config::kDepth, p.k);
      if (!once) b.load(to + Config::kOperandBytes, block * Config::kDepth, p.k);
    }
    copies_commit();  // one group for each block of the depth, even an empty one, because the wait
                      // counts groups
  };
  for (int i = 0; i < Config::kStages - 1; ++i) load(begin + i);
  for (int block = begin; block < end; ++block) {
    copies_wait<Config::kStages - 2>();
    __syncthreads();  // all threads have copied their part of the stage, and the previous stage has
                      // been read
    load(block + Config::kStages - 1);
    const unsigned char* stage = ring + (block - begin) % Config::kStages * Config::kStageBytes;
    multiply_stage<kElement>(sums, stage, once ? stage : stage + Config::kOperandBytes);
  }
  copies_wait<0>();
  __syncthreads();  // the ring is free
}

/// Calls visit(i, j, half, row, col) for each pair of neighboring elements of a thread; row and col
/// are relative to the cell.
template <class Visit>
__device__ inline void for_pairs(const Visit& visit) {
#pragma unroll
  for (int i = 0; i < Config::kDown; ++i)
#pragma unroll
    for (int j = 0; j < Config::kAcross; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Offset2 at = mma_c(lane(), 2 * half);
        visit(i, j, half, warp_row() * Config::kWarpRows + 16 * i + at.row,
              warp_col() * Config::kWarpCols + 8 * j + at.col);
      }
}

/// Stores the part of the tile that is inside the result, 16 bytes for each thread and step.
__device__ inline void store_tile(const uint16_t* tile, const SymmetricProblem& p, int64_t matrix,
                                  int first_row, int first_col) {
  constexpr int kChunks = kCell / kChunk;
  for (int i = static_cast<int>(threadIdx.x); i < kCell * kChunks; i += Config::kThreads) {
    const int row = i / kChunks, col = i % kChunks * kChunk;
    store_chunk(p, matrix, first_row + row, first_col + col, tile + row * Config::kPitch + col);
  }
}

using Words = uint32_t[Config::kDown][Config::kAcross][2];

template <DType kElement, bool kAdds>
__device__ inline void finish_job(Words& words, const Sums& sums, const SymmetricProblem& p,
                                  const TileJob& job) {
  const Scales scales = scales_of(p);
  const uint16_t* d = kAdds ? p.d + job.matrix * p.d_stride : nullptr;
  const bool diagonal = scales.gamma != 0.0f && job.row == job.col;
  for_pairs([&](int i, int j, int half, int row, int col) {
    uint32_t added = 0;
    if constexpr (kAdds) added = neighbours(p, d, job.row * kCell + row, job.col * kCell + col);
    words[i][j][half] =
        finished<kElement, kAdds>(scales, added, sums[i][j][2 * half], sums[i][j][2 * half + 1],
                                  diagonal && row == col, diagonal && row == col + 1);
  });
}

/// Epilogue and both stores. The shared memory must be free.
template <DType kElement>
__device__ inline void store_job(const Sums& sums, const SymmetricProblem& p, const TileJob& job,
                                 unsigned char* shared) {
  auto* tile = reinterpret_cast<uint16_t*>(shared);
  const int first_row = job.row * kCell, first_col = job.col * kCell;
  Words words;
  if (p.d) {
    finish_job<kElement, true>(words, sums, p, job);
  } else {
    finish_job<kElement, false>(words, sums, p, job);
  }
  const auto mirror_word = [&](uint32_t word, int row, int col, bool strictly_above) {
    for (int e = 0; e < 2; ++e)
      if (!strictly_above || row < col + e)
        tile[(col + e) * Config::kPitch + row] = static_cast<uint16_t>(word >> (16 * e));
  };
  if (stored_as(job.row, job.col) == Stored::kDiagonal) {
    for_pairs([&](int i, int j, int half, int row, int col) {
      const uint32_t word = words[i][j][half];
      for (int e = 0; e < 2; ++e)
        if (row <= col + e)
          tile[row * Config::kPitch + col + e] = static_cast<uint16_t>(word >> (16 * e));
      mirror_word(word, row, col, true);
    });
    __syncthreads();
    store_tile(tile, p, job.matrix, first_row, first_col);
    return;
  }
  for_pairs([&](int i, int j, int half, int row, int col) {
    *reinterpret_cast<uint32_t*>(tile + row * Config::kPitch + col) = words[i][j][half];
  });
  __syncthreads();
  store_tile(tile, p, job.matrix, first_row, first_col);
  __syncthreads();
  for_pairs([&](int i, int j, int half, int row, int col) {
    mirror_word(words[i][j][half], row, col, false);
  });
  __syncthreads();
  store_tile(tile, p, job.matrix, first_col, first_row);
}

/// Address of a sum of a slice; those of neighboring threads are adjacent.
__device__ inline float& partial(float* partials, int i, int j, int value) {
  const int index = (i * Config::kAcross + j) * 4 + value;
  return partials[index * Config::kThreads + static_cast<int>(threadIdx.x)];
}

template <DType kElement>
__global__ void __launch_bounds__(Config::kThreads, 2)
    symmetric_sm80_kernel(const __grid_constant__ SymmetricArguments args) {
  const TileJob job = args.jobs[blockIdx.x];
  const SymmetricProblem& p = args.problems[job.shape];
  Sums sums = {};
  multiply_job<kElement>(sums, p, job, dynamic_shared());
  if (p.slices == 1) return store_job<kElement>(sums, p, job, dynamic_shared());
  float* partials = args.partials + int64_t{blockIdx.x} * kPartialFloats;
#pragma unroll
  for (int i = 0; i < Config::kDown; ++i)
#pragma unroll
    for (int j = 0; j < Config::kAcross; ++j)
#pragma unroll
      for (int v = 0; v < 4; ++v) partial(partials, i, j, v) = sums[i][j][v];
}

/// A thread block adds the slices of one cell, first to last. It may use the registers of a whole
/// SM, because with two blocks on an SM it would spill.
template <DType kElement>
__global__ void __launch_bounds__(Config::kThreads, 1)
    finish_kernel(const __grid_constant__ SymmetricArguments args) {
  const int64_t first = int64_t{blockIdx.x} * args.slices;
  const TileJob job = args.jobs[first];
  const SymmetricProblem& p = args.problems[job.shape];
  Sums sums = {};
  for (int slice = 0; slice < args.slices; ++slice) {
    float* partials = args.partials + (first + slice) * kPartialFloats;
#pragma unroll
    for (int i = 0; i < Config::kDown; ++i)
#pragma unroll
      for (int j = 0; j < Config::kAcross; ++j)
#pragma unroll
        for (int v = 0; v < 4; ++v) sums[i][j][v] += partial(partials, i, j, v);
  }
  store_job<kElement>(sums, p, job, dynamic_shared());
}

using Kernel = void (*)(SymmetricArguments);

void launch_one(const char* name, Kernel kernel, int64_t blocks, const SymmetricArguments& args,
                cudaStream_t stream) {
  launch(name, kernel, grid_of(blocks), Config::kThreads, args, stream, Config::kSharedBytes);
}

}  // namespace

void symmetric_sm80_prepare() {
  for (const Kernel kernel :
       {symmetric_sm80_kernel<DType::kBF16>, symmetric_sm80_kernel<DType::kF16>,
        finish_kernel<DType::kBF16>, finish_kernel<DType::kF16>})
    MUONRT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     Config::kSharedBytes));
}

void symmetric_sm80(const SymmetricArguments& args, DType element, int64_t jobs,
                    cudaStream_t stream) {
  const bool bf16 = element == DType::kBF16;
  launch_one("symmetric_sm80",
             bf16 ? symmetric_sm80_kernel<DType::kBF16> : symmetric_sm80_kernel<DType::kF16>, jobs,
             args, stream);
  if (args.slices == 1) return;
  launch_one("symmetric_finish", bf16 ? finish_kernel<DType::kBF16> : finish_kernel<DType::kF16>,
             jobs / args.slices, args, stream);
}

}  // namespace muonrt::cuda
