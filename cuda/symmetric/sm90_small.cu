// Symmetric products on compute capability 9.0a in small tiles, for a few small matrices, and for
// narrow matrices of a large depth. Sums and epilogue are the same as in sm90.cu, so the results
// are bitwise identical.
//
// A thread block computes 64 x 64 or 64 x 128 elements (small_jobs.hpp). One thread of its last
// warp, the producer, starts TMA copies into a ring of stages. A stage is 64 deep, and contains 64
// rows of A and 64 or 128 rows of B. The other threads are the consumer warpgroup. If B is A and a
// tile begins on the diagonal, the rows of A are copied once. Two blocks share an SM.
//
// If the depth is divided, each block of a cluster computes one slice of the same 64 x 64 elements.
// The blocks store their sums in the memory of the ring. After a barrier each block adds the
// slices, in order, for its own 16 or 32 columns, and reads them from the shared memory of all
// blocks. A second barrier keeps all blocks, and therefore their memory, alive until these reads
// have ended.
//
// Epilogue: D arrives through the ring after the operands. D uses the slot of a stage's last
// operand, because sums of slices occupy the slots of the first two operands. Squares of 64 x 64
// elements and their transpose are written to shared memory from the same registers (stmatrix).
// Then they are stored in global memory with 16-byte stores. In a square on the diagonal, elements
// on and above the diagonal come from the square itself, and elements below it from the transposed
// square.
//
// Launches are programmatic, as in sm90.cu.

#include <utility>

#include "cuda/device/launch.hpp"
#include "cuda/symmetric/kernels.hpp"
#include "cuda/symmetric/layouts.hpp"
#include "cuda/symmetric/ptx_sm90.cuh"
#include "cuda/symmetric/ptx_wgmma.cuh"
#include "cuda/symmetric/ring.hpp"
#include "cuda/symmetric/small_jobs.hpp"
#include "cuda/symmetric/warpgroup.cuh"

namespace muonrt::cuda {

namespace {

struct Config {
  static constexpr int kConsumerThreads = 128;
  static constexpr int kThreads = kConsumerThreads + 32;
  static constexpr int kBlocksOfSm = 2;
  static constexpr int kOperandBytes = kSmallCell * kStageDepth * 2;
  static constexpr int kStageBytes = 3 * kOperandBytes;
  static constexpr int kSquareBytes = kSmallCell * kSmallCell * 2;
  static constexpr int kStagingAt = kRingStages * kStageBytes;
  static constexpr int kBarriersAt = kStagingAt + 2 * kSquareBytes;
  static constexpr int kSharedBytes = kBarriersAt + 2 * kRingStages * 8;
};
static_assert(Config::kBlocksOfSm * (Config::kSharedBytes + 1024) <= 233472, "memory of an SM");
static_assert(kSmallCell == kSquare);
static_assert(kSmallCell * kSmallCell * 4 <= 2 * Config::kOperandBytes, "sums of slices, before D");

struct Shared {
  unsigned char* memory;

  __device__ unsigned char* stage(int fill) const {
    return memory + stage_of(fill) * Config::kStageBytes;
  }
  /// Returns a square of D in its stage.
  __device__ unsigned char* d(int fill, int square) const {
    return stage(fill) + (2 - square) * Config::kOperandBytes;
  }
  __device__ uint64_t* full(int fill) const {
    return reinterpret_cast<uint64_t*>(memory + Config::kBarriersAt) + stage_of(fill);
  }
  __device__ uint64_t* empty(int fill) const { return full(fill) + kRingStages; }
  __device__ unsigned char* straight() const { return memory + Config::kStagingAt; }
  __device__ unsigned char* mirrored() const { return straight() + Config::kSquareBytes; }
  /// Returns the slot for four sums of a thread. The slots of neighboring threads are adjacent.
  __device__ float* four_sums(int four) const {
    return reinterpret_cast<float*>(memory) +
           (four * Config::kConsumerThreads + static_cast<int>(threadIdx.x)) * 4;
  }
};

/// The position of a square of the tile in the result.
struct Square {
  int row, col;
};

__device__ inline bool loads_once(const SymmetricProblem& p, const TileJob& job) {
  return p.same && job.row == job.col;
}

/// Waits until a fill's stage is free, and announces the bytes of the fill.
__device__ inline void open_stage(const Shared& shared, int fill, int operands) {
  if (waits(fill)) mbarrier_wait(shared.empty(fill), parity_before(fill));
  mbarrier_arrive_expect_tx(shared.full(fill),
                            static_cast<uint32_t>(operands * Config::kOperandBytes));
}

/// Fills the ring with stages [begin, end) along the depth, and then with D's squares. One thread
/// calls this function.
__device__ inline void produce(const Sm90SmallArguments& args, const TileJob& job,
                               const Shared& shared, int begin, int end) {
  const int once = loads_once(args.problems[job.shape], job);
  const int cells = job.kind == JobKind::kWide ? 2 : 1;
  for (int fill = 0; fill < end - begin; ++fill) {
    open_stage(shared, fill, 1 + cells - once);
    uint64_t* full = shared.full(fill);
    unsigned char* stage = shared.stage(fill);
    const int k = (begin + fill) * kStageDepth;
    tma_load(stage, args.a[job.shape], k, job.row * kSmallCell, job.matrix, full);
    for (int cell = once; cell < cells; ++cell)
      tma_load(stage + (1 + cell - once) * Config::kOperandBytes, args.b[job.shape], k,
               (job.col + cell) * kSmallCell, job.matrix, full);
  }
  if (!args.problems[job.shape].d) return;
  const int fill = end - begin;
  open_stage(shared, fill, cells);
  for (int square = 0; square < cells; ++square)
    tma_load(shared.d(fill, square), args.d[job.shape], (job.col + square) * kSmallCell,
             job.row * kSmallCell, job.matrix, shared.full(fill));
}

/// Starts the products of a fill. When the function returns, the products of the previous fill are
/// complete and the previous fill's stage is released.
template <DType kElement, int kCols>
__device__ inline void multiply_stage(float (&sums)[kCols / 2], bool adds, const Shared& shared,
                                      int b_at, int fill) {
  mbarrier_wait(shared.full(fill), parity_of(fill));
  const uint32_t stage = shared_address(shared.stage(fill));
  multiply_group<kElement, kCols>(sums, stage, stage + static_cast<uint32_t>(b_at), adds);
  if (adds && threadIdx.x == 0) mbarrier_arrive(shared.empty(fill - 1));
}

/// Sets `sums` to the products of `stages` fills of the ring.
template <DType kElement, int kCols>
__device__ inline void consume(float (&sums)[kCols / 2], const Shared& shared, int b_at,
                               int stages) {
  multiply_stage<kElement, kCols>(sums, false, shared, b_at, 0);
  for (int fill = 1; fill < stages; ++fill)
    multiply_stage<kElement, kCols>(sums, true, shared, b_at, fill);
  wgmma_wait<0>();
  wgmma_settle(sums);
}

/// Adds the sums of all slices, from first to last, for this block's part of the columns, and
/// writes the results to `totals`. All consumer threads of the cluster call this function; the
/// producers' threads take part in its cluster_sync.
template <int kSlices>
__device__ inline void add_slices(float (&totals)[32 / kSlices], const float (&sums)[32],
                                  const Shared& shared, uint32_t rank) {
  constexpr int kFours = 8 / kSlices;
  warpgroup_sync(0);  // the products of every warp have read the ring
#pragma unroll
  for (int four = 0; four < 8; ++four) store_four(shared.four_sums(four), sums + 4 * four);
  cluster_sync();
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const float* at = shared.four_sums(static_cast<int>(rank) * kFours + i);
    load_four_of(totals + 4 * i, at, 0);
#pragma unroll
    for (int slice = 1; slice < kSlices; ++slice) {
      float part[4];
      load_four_of(part, at, static_cast<uint32_t>(slice));
#pragma unroll
      for (int v = 0; v < 4; ++v) totals[4 * i + v] += part[v];
    }
  }
}

/// Stores the data that `stage_strips` has written to shared memory in global memory.
template <int kCount>
__device__ inline void store_strips(const SymmetricProblem& p, const TileJob& job, Square at,
                                    int first, const Shared& shared) {
  constexpr int kChunks = kSmallCell / kChunk;
  const bool diagonal = stored_as(at.row, at.col) == Stored::kDiagonal;
  for (int i = static_cast<int>(threadIdx.x); i < kSmallCell * 2 * kCount;
       i += Config::kConsumerThreads) {
    const int row = i / (2 * kCount), chunk = 2 * first + i % (2 * kCount);
    store_chunk(p, job.matrix, at.row + row, at.col + kChunk * chunk,
                shared.straight() + swizzled128(row, chunk), diagonal ? row - kChunk * chunk : 0);
  }
  for (int i = static_cast<int>(threadIdx.x); i < 16 * kCount * kChunks;
       i += Config::kConsumerThreads) {
    const int row = 16 * first + i / kChunks, chunk = i % kChunks;
    store_chunk(p, job.matrix, at.col + row, at.row + kChunk * chunk,
                shared.mirrored() + swizzled128(row, chunk), 0,
                diagonal ? row - kChunk * chunk : kChunk);
  }
}

/// Completes and stores kCount strips of a square, starting with strip `first`. Skips elements
/// outside of the result.
/// @param d  the square of D; used only if kAdds is true.
template <DType kElement, bool kAdds, int kCount>
__device__ inline void store_square(const float* sums, const SymmetricProblem& p,
                                    const TileJob& job, int square, int first,
                                    const unsigned char* d, const Shared& shared) {
  const Square at{job.row * kSmallCell, (job.col + square) * kSmallCell};
  const Scales scales = scales_of(p);
  const int below = below_diagonal(scales.gamma != 0.0f && at.row == at.col);
  uint32_t words[kCount * kStripWords];
  finish_strips<kElement, kAdds, kCount>(words, sums, scales, d, first, below);
  if (square > 0) warpgroup_sync(0);  // waits until the previous square has been stored
  stage_strips<kCount>(words, first, shared.straight(), shared.mirrored());
  warpgroup_sync(0);
  store_strips<kCount>(p, job, at, first, shared);
}

/// Completes and stores this block's part of a tile: kCount strips of each square.
/// @param fill  the fill that contains D.
template <DType kElement, int kCount, int kSquares>
__device__ inline void store_tile(const float* sums, const SymmetricProblem& p, const TileJob& job,
                                  int first, int fill, const Shared& shared) {
  if (p.d) mbarrier_wait(shared.full(fill), parity_of(fill));
#pragma unroll
  for (int square = 0; square < kSquares; ++square) {
    const unsigned char* d = shared.d(fill, square);
    if (p.d) {
      store_square<kElement, true, kCount>(sums + 32 * square, p, job, square, first, d, shared);
    } else {
      store_square<kElement, false, kCount>(sums + 32 * square, p, job, square, first, d, shared);
    }
  }
}

template <DType kElement, int kSlices>
__device__ inline void compute(const Sm90SmallArguments& args, const TileJob& job,
                               const Shared& shared, uint32_t rank, int stages) {
  const SymmetricProblem& p = args.problems[job.shape];
  const int b_at = loads_once(p, job) ? 0 : Config::kOperandBytes;
  if constexpr (kSlices > 1) {
    constexpr int kCount = kStrips / kSlices;
    float sums[32], totals[8 * kCount];
    consume<kElement, 64>(sums, shared, b_at, stages);
    add_slices<kSlices>(totals, sums, shared, rank);
    store_tile<kElement, kCount, 1>(totals, p, job, static_cast<int>(rank) * kCount, stages,
                                    shared);
  } else if (job.kind == JobKind::kSquare) {
    float sums[32];
    consume<kElement, 64>(sums, shared, b_at, stages);
    store_tile<kElement, kStrips, 1>(sums, p, job, 0, stages, shared);
  } else {
    float sums[64];
    consume<kElement, 128>(sums, shared, b_at, stages);
    store_tile<kElement, kStrips, 2>(sums, p, job, 0, stages, shared);
  }
}

__device__ inline void init_mbarriers(const Shared& shared) {
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kRingStages; ++stage) {
      mbarrier_init(shared.full(stage), 1);
      mbarrier_init(shared.empty(stage), 1);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
}

template <DType kElement, int kSlices>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksOfSm)
    symmetric_sm90_small_kernel(const __grid_constant__ Sm90SmallArguments args) {
  const Shared shared{dynamic_shared()};
  const uint32_t rank = kSlices > 1 ? cluster_rank() : 0;
  const TileJob job = args.jobs[blockIdx.x / kSlices];
  const int all = stages_of(args.problems[job.shape].k), slice = static_cast<int>(rank);
  const int begin = slice_begin(all, slice, kSlices), end = slice_begin(all, slice + 1, kSlices);
  init_mbarriers(shared);
  if (threadIdx.x == 0) {
    prefetch_tensormap(args.a[job.shape]);
    prefetch_tensormap(args.b[job.shape]);
    if (args.problems[job.shape].d) prefetch_tensormap(args.d[job.shape]);
  }
  griddepcontrol_wait();
  if (threadIdx.x < Config::kConsumerThreads) {
    compute<kElement, kSlices>(args, job, shared, rank, end - begin);
  } else {
    if (elect_one()) {
      produce(args, job, shared, begin, end);
      griddepcontrol_launch_dependents();
    }
    if constexpr (kSlices > 1) cluster_sync();  // pairs with the cluster_sync in add_slices
  }
  if constexpr (kSlices > 1) cluster_sync();  // other blocks may still read this block's sums
}

using Kernel = void (*)(Sm90SmallArguments);

template <DType kElement>
Kernel kernel_of(int slices) {
  return slices == 1   ? symmetric_sm90_small_kernel<kElement, 1>
         : slices == 2 ? symmetric_sm90_small_kernel<kElement, 2>
                       : symmetric_sm90_small_kernel<kElement, 4>;
}

}  // namespace

void symmetric_sm90_small_prepare() {
  for (const int slices : {1, 2, 4})
    for (const Kernel kernel : {kernel_of<DType::kBF16>(slices), kernel_of<DType::kF16>(slices)})
      for (const auto& [attribute, value] :
           {std::pair(cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSharedBytes),
            // With two blocks on an SM, shared memory needs its largest share of the L1 memory.
            std::pair(cudaFuncAttributePreferredSharedMemoryCarveout,
                      int{cudaSharedmemCarveoutMaxShared})})
        MUONRT_CUDA(cudaFuncSetAttribute(kernel, attribute, value));
}

void symmetric_sm90_small(const Sm90SmallArguments& args, DType element, int slices, int64_t jobs,
                          bool early, cudaStream_t stream) {
  launch("symmetric_sm90_small",
         element == DType::kBF16 ? kernel_of<DType::kBF16>(slices) : kernel_of<DType::kF16>(slices),
         grid_of(jobs * slices), Config::kThreads, args, stream, Config::kSharedBytes,
         /*cluster=*/slices, /*programmatic=*/early);
}

}  // namespace muonrt::cuda
