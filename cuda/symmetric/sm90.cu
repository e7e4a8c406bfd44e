// Symmetric products on compute capability 9.0a: C = alpha A B^T + beta D + gamma I with f32 sums.
//
// A persistent thread block processes its part of a list (job_list.hpp). The tiles are 128 x 256 or
// 128 x 128 in the mixed list, and 128 x 192 in the list of medium tiles. Warpgroup 0 is the
// producer: one thread starts TMA copies into a ring of stages, which are 64 deep, in rows of 128
// bytes with the 128-byte swizzle. Warpgroups 1 and 2 are the consumers. Each multiplies 64 x 256
// with wgmma and keeps one group of products in flight while it releases the previous stage. The
// two blocks that compute a pair need the same rows of B; each copies half of them to both blocks.
//
// Epilogue: D comes through the ring after the operands. A consumer rounds its sums to half as many
// registers. During the products of the next tile (`multiply`) it writes them, straight (stmatrix)
// and mirrored (stmatrix.trans), to shared memory, from where TMA stores them.
//
// A stage has 128 rows of A, then 128 to 256 rows of B. If B is A and a tile touches the diagonal,
// the first 128 rows of B are those of A and are copied once. The stages of D follow. Each has 128
// x 128 elements in two boxes of 64 columns, or in one box if the tile has only 64 columns left.
//
// A launch may begin before the previous one has ended (programmatic launch). Before
// `griddepcontrol_wait` it reads only arguments and lists, which no kernel writes.

#include "cuda/device/check.hpp"
#include "cuda/device/launch.hpp"
#include "cuda/symmetric/kernels.hpp"
#include "cuda/symmetric/layouts.hpp"
#include "cuda/symmetric/ptx_sm90.cuh"
#include "cuda/symmetric/ptx_wgmma.cuh"
#include "cuda/symmetric/ring.hpp"
#include "cuda/symmetric/warpgroup.cuh"

namespace muonrt::cuda {

namespace {

struct Config {
  static constexpr uint16_t kBothBlocks = 3;  // both blocks of a cluster
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static constexpr int kDepth = kStageDepth;  // depth of a stage, which is a row of the swizzle
  static constexpr int kOperandBytes = kCell * kDepth * 2;
  static constexpr int kStageBytes = 3 * kOperandBytes;
  static constexpr int kSquareBytes = kSquare * kSquare * 2;
  static constexpr int kStagingAt = kRingStages * kStageBytes;
  static constexpr int kBarriersAt = kStagingAt + kConsumers * 2 * kSquareBytes;
  static constexpr int kSharedBytes = kBarriersAt + 3 * kRingStages * 8;
  // The consumers get the registers that the producer releases; no others become available.
  static constexpr int kRegisters = 65536 / kThreads / 8 * 8, kProducerRegisters = 40,
                       kConsumerRegisters =
                           kRegisters + (kRegisters - kProducerRegisters) / kConsumers;
};
static_assert(Config::kSharedBytes <= 232448, "shared memory of a block on sm_90");
static_assert(Config::kOperandBytes % 1024 == 0 && Config::kSquareBytes % 1024 == 0);

struct Shared {
  unsigned char* memory;

  __device__ unsigned char* stage(int fill) const {
    return memory + stage_of(fill) * Config::kStageBytes;
  }
  /// Returns the two squares of a consumer: first the straight one, then the mirrored one.
  __device__ unsigned char* staging(int consumer) const {
    return memory + Config::kStagingAt + consumer * 2 * Config::kSquareBytes;
  }
  __device__ uint64_t* barriers() const {
    return reinterpret_cast<uint64_t*>(memory + Config::kBarriersAt);
  }
  __device__ uint64_t* full(int fill) const { return barriers() + stage_of(fill); }
  __device__ uint64_t* empty(int fill) const { return barriers() + kRingStages + stage_of(fill); }
  __device__ uint64_t* peer_empty(int fill) const {
    return barriers() + 2 * kRingStages + stage_of(fill);
  }
};

/// Returns the first column of a job. Its kind is a template argument, because registers are few.
template <bool kMedium>
__device__ inline int first_col(const TileJob& job) {
  return job.col * (kMedium ? kSquare : kCell);
}

/// Returns whether A and B begin with the same rows, which shared memory then stores only once.
template <bool kMedium>
__device__ inline bool loads_once(const SymmetricProblem& p, const TileJob& job) {
  return p.same && job.row * (kMedium ? 2 : 1) == job.col;
}

/// Waits for a free stage and announces the bytes, one of the two arrivals that make it full.
__device__ inline void open_stage(const Shared& shared, int fill, bool pair, int bytes) {
  if (waits(fill)) {
    mbarrier_wait(shared.empty(fill), parity_before(fill));
    if (pair) mbarrier_wait(shared.peer_empty(fill), parity_before(fill));
  }
  mbarrier_arrive_expect_tx(shared.full(fill), static_cast<uint32_t>(bytes));
}

/// Copies D of a job's tile, with one cell in each stage. In a pair each producer also arrives at
/// the stage of the other block, because it copies nothing into that stage (ring.hpp).
template <bool kMedium>
__device__ inline void produce_d(const Sm90Arguments& args, const TileJob& job,
                                 const Shared& shared, int width, uint32_t rank, int& fill) {
  const bool pair = !kMedium && job.kind == JobKind::kPair;
  for (int half = 0; half < width; ++half, ++fill) {
    const int boxes = kMedium && half == 1 ? 1 : 2;
    open_stage(shared, fill, pair, boxes * Config::kOperandBytes);
    uint64_t* full = shared.full(fill);
    mbarrier_arrive_remote(full, pair ? rank ^ 1u : rank);
    for (int box = 0; box < boxes; ++box)
      tma_load(shared.stage(fill) + box * Config::kOperandBytes, args.d[job.shape],
               first_col<kMedium>(job) + half * kCell + box * kSquare, job.row * kCell, job.matrix,
               full);
  }
}

/// Fills the ring for one job, in one thread. Boxes of B have 128 rows, or 64 in medium jobs.
template <bool kMedium>
__device__ inline void produce_job(const Sm90Arguments& args, const TileJob& job,
                                   const Shared& shared, uint32_t rank, int& fill) {
  const SymmetricProblem& p = args.problems[job.shape];
  const TensorMap& a = args.a[job.shape];
  const TensorMap& b = args.b[job.shape];
  constexpr int kRows = kMedium ? kSquare : kCell, kBoxBytes = kRows * Config::kDepth * 2;
  const bool pair = !kMedium && job.kind == JobKind::kPair, once = loads_once<kMedium>(p, job);
  const int width = job.kind == JobKind::kSquare ? 1 : 2;
  const int boxes = kMedium ? 3 : width, there = once ? kCell / kRows : 0;
  const int blocks = stages_of(p.k);
  // These are read here, because otherwise they would be read again after each wait.
  const int row = job.row * kCell, col = job.col * kRows, matrix = job.matrix;
#pragma unroll 1  // if the loop were unrolled, the producer would spill registers
  for (int block = 0; block < blocks; ++block, ++fill) {
    open_stage(shared, fill, pair, Config::kOperandBytes + (boxes - there) * kBoxBytes);
    uint64_t* full = shared.full(fill);
    mbarrier_arrive(full);
    unsigned char* stage = shared.stage(fill);
    const int k = block * Config::kDepth;
    tma_load(stage, a, k, row, matrix, full);
    if (pair) {
      const auto half = static_cast<int>(rank);
      tma_load_multicast(stage + (1 + half) * Config::kOperandBytes, b, k, col + half * kCell,
                         matrix, full, Config::kBothBlocks);
      continue;
    }
#pragma unroll 1
    for (int box = there; box < boxes; ++box)
      tma_load(stage + Config::kOperandBytes + (box - there) * kBoxBytes, b, k, col + box * kRows,
               matrix, full);
  }
  if (p.d) produce_d<kMedium>(args, job, shared, width, rank, fill);
}

/// Releases a stage that a consumer has read, for each producer that copies into it.
__device__ inline void release(const Shared& shared, int fill, bool pair, uint32_t rank) {
  if (threadIdx.x % 128 != 0) return;
  mbarrier_arrive(shared.empty(fill));
  if (pair) mbarrier_arrive_remote(shared.peer_empty(fill), rank ^ 1u);
}

/// The finished elements of a consumer's part of a tile, as words of adjacent squares.
template <int kMost>
using TileWords = uint32_t[kMost][kStrips * kStripWords];

constexpr int kNone = -1;

/// Stores a square, unless it is outside of the tile or the result, or mirrors another square. TMA
/// writes only whole chunks, so a square that ends with a partial chunk is stored without TMA.
template <bool kMedium>
__device__ inline void store_square(const uint32_t* words, const Sm90Arguments& args,
                                    const TileJob& job, const Shared& shared, int consumer,
                                    int square) {
  const SymmetricProblem& p = args.problems[job.shape];
  const bool issues = threadIdx.x % 128 == 0;
  const int first_row = job.row * kCell + consumer * kSquare;
  const int first_col = cuda::first_col<kMedium>(job) + square * kSquare;
  const Stored how = stored_as(first_row, first_col);
  const bool outside = (job.kind == JobKind::kSquare && square >= kCell / kSquare) ||
                       first_row >= p.n || first_col >= p.n;
  if (how == Stored::kNot || outside) return;
  unsigned char* const straight = shared.staging(consumer);
  unsigned char* const mirrored = straight + Config::kSquareBytes;
  if (issues) tma_store_wait_read();
  warpgroup_sync(consumer);
  stage_strips<kStrips>(words, 0, straight, mirrored);
  if (how == Stored::kDiagonal) {
    warpgroup_sync(consumer);
    complete_diagonal(straight, mirrored);
  }
  fence_proxy_async();
  warpgroup_sync(consumer);
  const bool by_tma = p.n % kChunk == 0 || first_col + kSquare <= p.n;
  if (!by_tma) store_edge(p, job.matrix, first_row, first_col, straight);
  if (!issues) return;
  if (by_tma) tma_store(args.c[job.shape], first_col, first_row, job.matrix, straight);
  if (how == Stored::kBoth)
    tma_store(args.c[job.shape], first_row, first_col, job.matrix, mirrored);
  tma_store_commit();
}

/// Starts the products of the next fill. When it returns, the earlier products are complete and
/// their stage is released.
/// @param adds  whether to add to the sums; false for the first fill of a tile.
template <DType kElement, int kCols>
__device__ inline void multiply_stage(float (&sums)[128], bool adds, bool once, bool pair,
                                      const Shared& shared, int consumer, uint32_t rank,
                                      int& fill) {
  constexpr int kRowsBytes = kSquare * Config::kDepth * 2;
  const int b_at = once ? 0 : Config::kOperandBytes;
  mbarrier_wait(shared.full(fill), parity_of(fill));
  const uint32_t stage = shared_address(shared.stage(fill));
  multiply_group<kElement, kCols>(sums, stage + static_cast<uint32_t>(consumer * kRowsBytes),
                                  stage + static_cast<uint32_t>(b_at), adds);
  if (adds) release(shared, fill - 1, pair, rank);
  ++fill;
}

/// Computes sums = the products of the next `stages` fills. Stores the previous tile: a square
/// before the products, and one after each of the first stages. With all 64 words and 128 sums
/// live, ptxas would run out of registers and serialize the products (warning C7511).
/// @param before  index of the job to which `words` belong, or kNone if there is no such job.
template <DType kElement, int kCols, int kMost>
__device__ inline void multiply(float (&sums)[128], const TileWords<kMost>& words, int before,
                                const Sm90Arguments& args, const TileJob& job, int stages,
                                const Shared& shared, int consumer, uint32_t rank, int& fill) {
  constexpr bool kMedium = kCols == 192;
  const bool pair = !kMedium && job.kind == JobKind::kPair;
  const bool once = loads_once<kMedium>(args.problems[job.shape], job);
  const bool stores = before != kNone;
  if (stores) store_square<kMedium>(words[0], args, args.jobs[before], shared, consumer, 0);
#pragma unroll
  for (int i = 1; i < kMost; ++i) {
    if (i <= stages)
      multiply_stage<kElement, kCols>(sums, i > 1, once, pair, shared, consumer, rank, fill);
    if (stores) store_square<kMedium>(words[i], args, args.jobs[before], shared, consumer, i);
  }
  for (int i = kMost; i <= stages; ++i)
    multiply_stage<kElement, kCols>(sums, i > 1, once, pair, shared, consumer, rank, fill);
  wgmma_wait<0>();
  wgmma_settle(sums);
  release(shared, fill - 1, pair, rank);
}

/// Computes the words of a job's tile. A stage of D has two squares and is released after both.
template <DType kElement, int kCols, bool kAdds, int kMost>
__device__ inline void finish_tile(TileWords<kMost>& words, const float (&sums)[128],
                                   const SymmetricProblem& p, const TileJob& job,
                                   const Shared& shared, int consumer, uint32_t rank, int& fill) {
  const Scales scales = scales_of(p);
#pragma unroll
  for (int square = 0; square < kCols / kSquare; ++square) {
    if (kAdds && square % 2 == 0) mbarrier_wait(shared.full(fill), parity_of(fill));
    const unsigned char* d =
        shared.stage(fill) + square % 2 * Config::kOperandBytes + consumer * Config::kSquareBytes;
    const int below =
        below_diagonal(scales.gamma != 0.0f && job.row * kCell + consumer * kSquare ==
                                                   first_col<kCols == 192>(job) + square * kSquare);
    finish_strips<kElement, kAdds, kStrips>(words[square], sums + 32 * square, scales, d, 0, below);
    if (!kAdds || (square % 2 == 0 && square + 1 < kCols / kSquare)) continue;
    fence_proxy_async();  // a TMA copy overwrites this memory next
    warpgroup_sync(consumer);
    release(shared, fill, kCols == 256 && job.kind == JobKind::kPair, rank);
    ++fill;
  }
}

template <DType kElement, int kCols, int kMost>
__device__ inline void finish_job(TileWords<kMost>& words, const float (&sums)[128],
                                  const SymmetricProblem& p, const TileJob& job,
                                  const Shared& shared, int consumer, uint32_t rank, int& fill) {
  if (p.d) {
    finish_tile<kElement, kCols, true>(words, sums, p, job, shared, consumer, rank, fill);
  } else {
    finish_tile<kElement, kCols, false>(words, sums, p, job, shared, consumer, rank, fill);
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

template <DType kElement, int kCols, int kMost>
__device__ inline void process_tile(TileWords<kMost>& words, int before, const Sm90Arguments& args,
                                    const TileJob& job, const Shared& shared, int consumer,
                                    uint32_t rank, int& fill) {
  const SymmetricProblem& p = args.problems[job.shape];
  float sums[128];
  multiply<kElement, kCols>(sums, words, before, args, job, stages_of(p.k), shared, consumer, rank,
                            fill);
  finish_job<kElement, kCols>(words, sums, p, job, shared, consumer, rank, fill);
}

/// Computes a square whose depth is cut. Each slice has separate sums, and they are added in order.
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
    multiply<kElement, 128>(sums, words, slice == 0 ? before : kNone, args, job,
                            end - slice_begin(stages, slice, p.slices), shared, consumer, rank,
                            fill);
#pragma unroll
    for (int i = 0; i < 64; ++i) totals[i] = slice == 0 ? sums[i] : totals[i] + sums[i];
  }
  finish_job<kElement, 128>(words, totals, p, job, shared, consumer, rank, fill);
}

template <DType kElement, Sm90Jobs kJobs>
__global__ void __launch_bounds__(Config::kThreads, 1)
    symmetric_sm90_kernel(const __grid_constant__ Sm90Arguments args) {
  constexpr bool kMedium = kJobs == Sm90Jobs::kMedium;
  const Shared shared{dynamic_shared()};
  const uint32_t rank = cluster_rank();
  const int first = args.first[blockIdx.x], end = args.first[blockIdx.x + 1];
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // shows ptxas that a warp has one value
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
      // Reads the next job while this job's copies run, so that L1 has it for the consumers.
      TileJob next;
      if (first < end) next = args.jobs[first];
      for (int i = first; i < end; ++i) {
        const TileJob job = next;
        if (i + 1 < end) next = args.jobs[i + 1];
        produce_job<kMedium>(args, job, shared, rank, fill);
      }
      // This comes last, because blocks of the next launch would occupy a communicator's SMs.
      griddepcontrol_launch_dependents();
    }
  } else {
    setmaxnreg_inc<Config::kConsumerRegisters>();
    const int consumer = warp / 4 - 1;
    constexpr int kMost = kMedium ? 3 : kJobs == Sm90Jobs::kSliced ? 2 : 4;
    TileWords<kMost> words;
    int before = kNone;
    if (consumer == 1 && first < end) mbarrier_wait(shared.full(args.skew), parity_of(args.skew));
    for (int i = first; i < end; ++i) {
      const TileJob job = args.jobs[i];
      if constexpr (kJobs == Sm90Jobs::kSliced) {
        process_slices<kElement>(words, before, args, job, shared, consumer, rank, fill);
      } else if constexpr (kMedium) {
        process_tile<kElement, 192>(words, before, args, job, shared, consumer, rank, fill);
      } else if (job.kind == JobKind::kSquare) {
        process_tile<kElement, 128>(words, before, args, job, shared, consumer, rank, fill);
      } else {
        process_tile<kElement, 256>(words, before, args, job, shared, consumer, rank, fill);
      }
      before = i;
    }
#pragma unroll
    for (int i = 0; i < kMost; ++i)
      if (before != kNone)
        store_square<kMedium>(words[i], args, args.jobs[before], shared, consumer, i);
    if (threadIdx.x % 128 == 0) tma_store_wait();
  }
  cluster_sync();  // the other block may still write to this block's memory and barriers
}

using Kernel = void (*)(Sm90Arguments);

template <DType kElement>
Kernel kernel_of(Sm90Jobs jobs) {
  return jobs == Sm90Jobs::kMixed    ? symmetric_sm90_kernel<kElement, Sm90Jobs::kMixed>
         : jobs == Sm90Jobs::kSliced ? symmetric_sm90_kernel<kElement, Sm90Jobs::kSliced>
                                     : symmetric_sm90_kernel<kElement, Sm90Jobs::kMedium>;
}

}  // namespace

void symmetric_sm90_prepare() {
  for (const Sm90Jobs jobs : {Sm90Jobs::kMixed, Sm90Jobs::kSliced, Sm90Jobs::kMedium})
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
