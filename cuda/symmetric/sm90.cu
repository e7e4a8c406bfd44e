// Symmetric products on compute capability 9.0a: C = alpha A B^T + beta D + gamma I with f32 sums.
// Also dense products: C = alpha A B + beta D with an MN-major B.
//
// A persistent thread block processes its part of a list of jobs (job_list.hpp). The tiles are 128
// x 256 or 128 x 128 in the mixed list, and 128 x 192 in the list of medium tiles. Warpgroup 0 is
// the producer: one of its threads starts TMA copies into a ring of stages. A stage is 64 deep, in
// rows of 128 bytes with the 128-byte swizzle. Warpgroups 1 and 2 are the consumers. Each computes
// 64 x 256 elements with wgmma, and keeps one group of products in flight while it releases the
// previous stage. The two blocks of a pair need the same rows of B; each block copies half of these
// rows to both blocks.
//
// Epilogue: D arrives through the ring after the operands. A consumer rounds its sums, which then
// need half as many registers. During the products of the next tile (`multiply`), the consumer
// writes the rounded elements (stmatrix) and their transpose (stmatrix.trans) to shared memory, and
// TMA stores them from there. Dense results are stored without the transpose.
//
// A stage contains 128 rows of A, followed by 128 to 256 rows of B, or by blocks of 64 columns of B
// if B is MN-major. If B is A and a tile touches the diagonal, the first 128 rows of B are also the
// rows of A and are copied once. The stages of D follow. Each has 128 x 128 elements in two boxes
// of 64 columns, or in one box if only 64 columns of the tile are left.
//
// A launch may begin before the previous one has ended (programmatic launch). Before
// `griddepcontrol_wait`, a launch reads only arguments and lists, which no kernel writes.

#include "cuda/device/check.hpp"
#include "cuda/device/launch.hpp"
#include "cuda/symmetric/kernels.hpp"
#include "cuda/symmetric/layouts.hpp"
#include "cuda/symmetric/ptx_sm90.cuh"
#include "cuda/symmetric/ptx_wgmma.cuh"
#include "cuda/symmetric/ring.hpp"
#include "cuda/symmetric/sm90_producer.cuh"
#include "cuda/symmetric/warpgroup.cuh"

namespace muonrt::cuda {

namespace {

using namespace sm90;

/// Releases a stage that a consumer has read, at the barrier of each producer that copies into it.
__device__ inline void release(const Shared& shared, int fill, bool pair, uint32_t rank) {
  if (threadIdx.x % 128 != 0) return;
  mbarrier_arrive(shared.empty(fill));
  if (pair) mbarrier_arrive_remote(shared.peer_empty(fill), rank ^ 1u);
}

/// The rounded elements of a consumer's part of a tile, two in each word, square after square.
using SquareWords = uint32_t[kStrips * kStripWords];
template <int kMost>
using TileWords = SquareWords[kMost];

/// Stores a square, unless it is outside of the tile or of the result, or is the transpose of
/// another square. TMA writes only whole chunks, so a square that ends with a partial chunk is
/// stored without TMA.
template <Sm90Jobs kJobs>
__device__ inline void store_square(const uint32_t* words, const Sm90Arguments& args,
                                    const TileJob& job, const Shared& shared, int consumer,
                                    int square) {
  const SymmetricProblem& p = args.problems[job.shape];
  const bool issues = threadIdx.x % 128 == 0;
  constexpr bool kDense = kJobs == Sm90Jobs::kDense;
  const int first_row = job.row * kCell + consumer * kSquare;
  const int first_col = sm90::first_col<kJobs>(job) + square * kSquare;
  const Stored how = kDense ? Stored::kStraight : stored_as(first_row, first_col);
  const bool outside = (job.kind == JobKind::kSquare && square >= kCell / kSquare) ||
                       first_row >= rows_of<kDense>(p) || first_col >= p.n;
  if (how == Stored::kNot || outside) return;
  unsigned char* const straight = shared.staging(consumer);
  unsigned char* const mirrored = straight + Config::kSquareBytes;
  if (issues) tma_store_wait_read();
  warpgroup_sync(consumer);
  stage_strips<kStrips, !kDense>(words, 0, straight, mirrored);
  if (how == Stored::kDiagonal) {
    warpgroup_sync(consumer);
    complete_diagonal(straight, mirrored);
  }
  fence_proxy_async();
  warpgroup_sync(consumer);
  const bool by_tma = p.n % kChunk == 0 || first_col + kSquare <= p.n;
  if (!by_tma) store_edge<kDense>(p, job.matrix, first_row, first_col, straight);
  if (!issues) return;
  if (by_tma) tma_store(args.c[job.shape], first_col, first_row, job.matrix, straight);
  if (how == Stored::kBoth)
    tma_store(args.c[job.shape], first_row, first_col, job.matrix, mirrored);
  tma_store_commit();
}

/// Starts the products of the next fill. When it returns, the earlier products are complete and
/// their stage is released.
/// @param adds  whether to add to the sums; false for the first fill of a tile.
template <DType kElement, int kCols, Major kB>
__device__ inline void multiply_stage(float (&sums)[128], bool adds, bool once, bool pair,
                                      const Shared& shared, int consumer, uint32_t rank,
                                      int& fill) {
  constexpr int kRowsBytes = kSquare * Config::kDepth * 2;
  const int b_at = once ? 0 : Config::kOperandBytes;
  mbarrier_wait(shared.full(fill), parity_of(fill));
  const uint32_t stage = shared_address(shared.stage(fill));
  multiply_group<kElement, kCols, kB>(sums, stage + static_cast<uint32_t>(consumer * kRowsBytes),
                                      stage + static_cast<uint32_t>(b_at), adds);
  if (adds) release(shared, fill - 1, pair, rank);
  ++fill;
}

/// Sets `sums` to the products of the next `stages` fills. Stores the previous tile: one square
/// before the products, and one after each of the first stages. With all 64 words and 128 sums
/// live, ptxas would run out of registers and serialize the products (warning C7511).
/// @param before  index of the job to which `words` belong, or kNone if there is no such job.
template <DType kElement, Sm90Jobs kJobs, int kCols, int kMost>
__device__ inline void multiply(float (&sums)[128], const TileWords<kMost>& words, int before,
                                const Sm90Arguments& args, const TileJob& job, int stages,
                                const Shared& shared, int consumer, uint32_t rank, int& fill) {
  constexpr Major kB = kJobs == Sm90Jobs::kDense ? Major::kMN : Major::kK;
  const bool pair = kJobs != Sm90Jobs::kMedium && job.kind == JobKind::kPair;
  const bool once = loads_once<kJobs>(args.problems[job.shape], job);
  const bool stores = before != kNone;
  if (stores) store_square<kJobs>(words[0], args, args.jobs[before], shared, consumer, 0);
#pragma unroll
  for (int i = 1; i < kMost; ++i) {
    if (i <= stages)
      multiply_stage<kElement, kCols, kB>(sums, i > 1, once, pair, shared, consumer, rank, fill);
    if (stores) store_square<kJobs>(words[i], args, args.jobs[before], shared, consumer, i);
  }
  for (int i = kMost; i <= stages; ++i)
    multiply_stage<kElement, kCols, kB>(sums, i > 1, once, pair, shared, consumer, rank, fill);
  wgmma_wait<0>();
  wgmma_settle(sums);
  release(shared, fill - 1, pair, rank);
}

/// Computes the words of a job's tile. A stage of D contains two squares and is released after both
/// have been read.
template <DType kElement, Sm90Jobs kJobs, int kCols, bool kAdds>
__device__ inline void finish_tile(SquareWords* words, const float (&sums)[128],
                                   const SymmetricProblem& p, const TileJob& job,
                                   const Shared& shared, int consumer, uint32_t rank, int& fill) {
  const Scales scales = scales_of(p);
#pragma unroll
  for (int square = 0; square < kCols / kSquare; ++square) {
    if (kAdds && square % 2 == 0) mbarrier_wait(shared.full(fill), parity_of(fill));
    const unsigned char* d =
        shared.stage(fill) + square % 2 * Config::kOperandBytes + consumer * Config::kSquareBytes;
    const int below = below_diagonal(kJobs != Sm90Jobs::kDense && scales.gamma != 0.0f &&
                                     job.row * kCell + consumer * kSquare ==
                                         first_col<kJobs>(job) + square * kSquare);
    finish_strips<kElement, kAdds, kStrips>(words[square], sums + 32 * square, scales, d, 0, below);
    if (!kAdds || (square % 2 == 0 && square + 1 < kCols / kSquare)) continue;
    fence_proxy_async();  // a TMA copy overwrites this memory next
    warpgroup_sync(consumer);
    release(shared, fill, kCols == 256 && job.kind == JobKind::kPair, rank);
    ++fill;
  }
}

template <DType kElement, Sm90Jobs kJobs, int kCols>
__device__ inline void finish_job(SquareWords* words, const float (&sums)[128],
                                  const SymmetricProblem& p, const TileJob& job,
                                  const Shared& shared, int consumer, uint32_t rank, int& fill) {
  if (p.d) {
    finish_tile<kElement, kJobs, kCols, true>(words, sums, p, job, shared, consumer, rank, fill);
  } else {
    finish_tile<kElement, kJobs, kCols, false>(words, sums, p, job, shared, consumer, rank, fill);
  }
}

__device__ inline void init_mbarriers(const Shared& shared) {
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kRingStages; ++stage) {
      mbarrier_init(shared.full(stage), 2);
      mbarrier_init(shared.empty(stage), kConsumers);
      mbarrier_init(shared.peer_empty(stage), kConsumers);
    }
    fence_mbarrier_init();
  }
  cluster_sync();
}

template <DType kElement, Sm90Jobs kJobs, int kCols, int kMost>
__device__ inline void process_tile(TileWords<kMost>& words, int before, const Sm90Arguments& args,
                                    const TileJob& job, const Shared& shared, int consumer,
                                    uint32_t rank, int& fill) {
  const SymmetricProblem& p = args.problems[job.shape];
  float sums[128];
  multiply<kElement, kJobs, kCols>(sums, words, before, args, job, stages_of(p.k), shared, consumer,
                                   rank, fill);
  finish_job<kElement, kJobs, kCols>(words, sums, p, job, shared, consumer, rank, fill);
}

/// Computes a square whose depth is divided into slices. Each slice has separate sums, which are
/// added in order.
template <DType kElement>
__device__ inline void process_slices(TileWords<2>& words, int before, const Sm90Arguments& args,
                                      const TileJob& job, const Shared& shared, int consumer,
                                      uint32_t rank, int& fill) {
  const SymmetricProblem& p = args.problems[job.shape];
  const int stages = stages_of(p.k);
  float totals[128];
  for (int slice = 0; slice < p.slices; ++slice) {
    float sums[128];
    const int end = slice_begin(stages, slice + 1, p.slices);
    multiply<kElement, Sm90Jobs::kSliced, 128>(sums, words, slice == 0 ? before : kNone, args, job,
                                               end - slice_begin(stages, slice, p.slices), shared,
                                               consumer, rank, fill);
#pragma unroll
    for (int i = 0; i < 64; ++i) totals[i] = slice == 0 ? sums[i] : totals[i] + sums[i];
  }
  finish_job<kElement, Sm90Jobs::kSliced, 128>(words, totals, p, job, shared, consumer, rank, fill);
}

/// Waits for the fill with which the next job begins. Returns the index of this job, or kNone after
/// the last job.
__device__ inline int taken_job(const Shared& shared, int consumer, int fill) {
  mbarrier_wait(shared.full(fill), parity_of(fill));
  const int index = *shared.taken(fill);
  warpgroup_sync(consumer);  // a single thread releases the stage after all threads have read
  return index;
}

template <DType kElement, Sm90Jobs kJobs>
__global__ void __launch_bounds__(Config::kThreads, 1)
    symmetric_sm90_kernel(const __grid_constant__ Sm90Arguments args) {
  constexpr bool kMedium = kJobs == Sm90Jobs::kMedium;
  const Shared shared{dynamic_shared()};
  const uint32_t rank = cluster_rank();
  constexpr bool kCounted = kJobs == Sm90Jobs::kCounted;
  const int first = kCounted ? static_cast<int>(blockIdx.x) : args.first[blockIdx.x];
  const int end = kCounted ? args.count : args.first[blockIdx.x + 1];
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // lets ptxas know that the value is the
                                                           // same in the whole warp
  init_mbarriers(shared);
  if (threadIdx.x == 0 && first < end) {
    const int shape = args.jobs[first].shape;
    for (const TensorMap* map : {&args.a[shape], &args.b[shape], &args.c[shape]})
      prefetch_tensormap(*map);
  }
  griddepcontrol_wait();
  int fill = 0;
  if (warp < 4) {
    setmaxnreg_dec<Config::kProducerRegisters>();
    if (warp == 0 && elect_one()) {
      if constexpr (kCounted) {
        produce_counted(args, shared, rank, fill);
      } else {
        produce<kJobs>(args, first, end, shared, rank, fill);
      }
      // This call comes last, because blocks of the next launch would occupy a communicator's SMs.
      griddepcontrol_launch_dependents();
    }
  } else {
    setmaxnreg_inc<Config::kConsumerRegisters>();
    const int consumer = warp / 4 - 1;
    constexpr int kMost = kMedium ? 3 : kJobs == Sm90Jobs::kSliced ? 2 : 4;
    TileWords<kMost> words;
    int before = kNone;
    if (consumer == 1 && first < end) mbarrier_wait(shared.full(args.skew), parity_of(args.skew));
    for (int i = first; kCounted || i < end; ++i) {
      if constexpr (kCounted) {
        i = taken_job(shared, consumer, fill);
        if (i == kNone) break;
      }
      const TileJob job = args.jobs[i];
      if constexpr (kJobs == Sm90Jobs::kSliced) {
        process_slices<kElement>(words, before, args, job, shared, consumer, rank, fill);
      } else if constexpr (kMedium) {
        process_tile<kElement, kJobs, 192>(words, before, args, job, shared, consumer, rank, fill);
      } else if (job.kind == JobKind::kSquare) {
        process_tile<kElement, kJobs, 128>(words, before, args, job, shared, consumer, rank, fill);
      } else {
        process_tile<kElement, kJobs, 256>(words, before, args, job, shared, consumer, rank, fill);
      }
      before = i;
    }
#pragma unroll
    for (int i = 0; i < kMost; ++i)
      if (before != kNone)
        store_square<kJobs>(words[i], args, args.jobs[before], shared, consumer, i);
    if (threadIdx.x % 128 == 0) tma_store_wait();
  }
  cluster_sync();  // the other block may still write to this block's memory and barriers
}

using Kernel = void (*)(Sm90Arguments);

template <DType kElement>
Kernel kernel_of(Sm90Jobs jobs) {
  return jobs == Sm90Jobs::kMixed    ? symmetric_sm90_kernel<kElement, Sm90Jobs::kMixed>
         : jobs == Sm90Jobs::kSliced ? symmetric_sm90_kernel<kElement, Sm90Jobs::kSliced>
         : jobs == Sm90Jobs::kMedium ? symmetric_sm90_kernel<kElement, Sm90Jobs::kMedium>
         : jobs == Sm90Jobs::kDense  ? symmetric_sm90_kernel<kElement, Sm90Jobs::kDense>
                                     : symmetric_sm90_kernel<kElement, Sm90Jobs::kCounted>;
}

}  // namespace

void symmetric_sm90_prepare() {
  for (const Sm90Jobs jobs : {Sm90Jobs::kMixed, Sm90Jobs::kSliced, Sm90Jobs::kMedium,
                              Sm90Jobs::kDense, Sm90Jobs::kCounted})
    for (const Kernel kernel : {kernel_of<DType::kBF16>(jobs), kernel_of<DType::kF16>(jobs)})
      MUONRT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       Config::kSharedBytes));
}

void symmetric_sm90(const Sm90Arguments& args, DType element, const Sm90Grid& grid,
                    cudaStream_t stream) {
  launch("symmetric_sm90",
         element == DType::kBF16 ? kernel_of<DType::kBF16>(grid.jobs)
                                 : kernel_of<DType::kF16>(grid.jobs),
         grid_of(grid.blocks), Config::kThreads, args, stream, Config::kSharedBytes,
         grid.clusters ? 2 : 1, /*programmatic=*/grid.early);
}

}  // namespace muonrt::cuda
