#pragma once

#include "cuda/symmetric/kernels.hpp"
#include "cuda/symmetric/layouts.hpp"
#include "cuda/symmetric/ptx_sm90.cuh"
#include "cuda/symmetric/ring.hpp"
#include "cuda/symmetric/warpgroup.cuh"

// The shared memory of sm90.cu, and the producer, which fills the ring of stages.

namespace muonrt::cuda {

namespace sm90 {

struct Config {
  static constexpr uint16_t kBothBlocks = 3;  // both blocks of a cluster
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static constexpr int kDepth = kStageDepth;  // depth of a stage; a row of a stage is a row of the
                                              // swizzle
  static constexpr int kOperandBytes = kCell * kDepth * 2;
  static constexpr int kStageBytes = 3 * kOperandBytes;
  static constexpr int kSquareBytes = kSquare * kSquare * 2;
  static constexpr int kStagingAt = kRingStages * kStageBytes;
  static constexpr int kBarriersAt = kStagingAt + kConsumers * 2 * kSquareBytes;
  static constexpr int kTakenAt = kBarriersAt + 3 * kRingStages * 8;
  static constexpr int kSharedBytes = kTakenAt + kRingStages * 4;
  // The consumers get no additional registers except those that the producer releases.
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
  /// Returns the two squares of a consumer: first the untransposed square, then the transposed one.
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
  /// Returns the slot for the index of the job that begins with this fill. Used only if jobs are
  /// counted.
  __device__ int* taken(int fill) const {
    return reinterpret_cast<int*>(memory + Config::kTakenAt) + stage_of(fill);
  }
};

constexpr int kNone = -1;  // no job

/// Returns the first column of a job. The kind of jobs is a template argument, because this saves
/// registers.
template <Sm90Jobs kJobs>
__device__ inline int first_col(const TileJob& job) {
  return job.col * (kJobs == Sm90Jobs::kMedium ? kSquare : kCell);
}

/// Returns whether A and B begin with the same rows, so that shared memory stores these rows only
/// once.
template <Sm90Jobs kJobs>
__device__ inline bool loads_once(const SymmetricProblem& p, const TileJob& job) {
  if constexpr (kJobs == Sm90Jobs::kDense) return false;
  return p.same && job.row * (kJobs == Sm90Jobs::kMedium ? 2 : 1) == job.col;
}

/// Waits for a free stage and announces the bytes. The announcement is one of the two arrivals at
/// `full`.
__device__ inline void open_stage(const Shared& shared, int fill, bool pair, int bytes) {
  if (waits(fill)) {
    mbarrier_wait(shared.empty(fill), parity_before(fill));
    if (pair) mbarrier_wait(shared.peer_empty(fill), parity_before(fill));
  }
  mbarrier_arrive_expect_tx(shared.full(fill), static_cast<uint32_t>(bytes));
}

/// Copies D's tile of a job, with one cell in each stage. In a pair, each producer also arrives at
/// the stage of the other block, because it copies nothing into that stage (ring.hpp).
template <Sm90Jobs kJobs>
__device__ inline void produce_d(const Sm90Arguments& args, const TileJob& job,
                                 const Shared& shared, int width, uint32_t rank, int& fill) {
  constexpr bool kMedium = kJobs == Sm90Jobs::kMedium;
  const bool pair = !kMedium && job.kind == JobKind::kPair;
  for (int half = 0; half < width; ++half, ++fill) {
    const int boxes = kMedium && half == 1 ? 1 : 2;
    open_stage(shared, fill, pair, boxes * Config::kOperandBytes);
    uint64_t* full = shared.full(fill);
    mbarrier_arrive_remote(full, pair ? rank ^ 1u : rank);
    for (int box = 0; box < boxes; ++box)
      tma_load(shared.stage(fill) + box * Config::kOperandBytes, args.d[job.shape],
               first_col<kJobs>(job) + half * kCell + box * kSquare, job.row * kCell, job.matrix,
               full);
  }
}

/// Fills the ring for one job. One thread calls this function. A box of B has 128 rows, or 64 rows
/// in medium jobs. In dense jobs, it has 64 columns of an MN-major B.
/// @param index  index of the job; used only if jobs are counted.
template <Sm90Jobs kJobs>
__device__ inline void produce_job(const Sm90Arguments& args, const TileJob& job, int index,
                                   const Shared& shared, uint32_t rank, int& fill) {
  constexpr bool kMedium = kJobs == Sm90Jobs::kMedium, kDense = kJobs == Sm90Jobs::kDense;
  const SymmetricProblem& p = args.problems[job.shape];
  const TensorMap& a = args.a[job.shape];
  const TensorMap& b = args.b[job.shape];
  constexpr int kBox = kMedium || kDense ? kSquare : kCell, kBoxBytes = kBox * Config::kDepth * 2;
  constexpr int kBoxesOfCell = kCell / kBox;
  const bool pair = !kMedium && job.kind == JobKind::kPair, once = loads_once<kJobs>(p, job);
  const int width = job.kind == JobKind::kSquare ? 1 : 2;
  const int boxes = kMedium ? 3 : width * kBoxesOfCell, there = once ? kBoxesOfCell : 0;
  const int blocks = stages_of(p.k);
  // These values are read here, because otherwise they would be read again after each wait.
  const int row = job.row * kCell, col = first_col<kJobs>(job), matrix = job.matrix;
#pragma unroll 1  // if the loop were unrolled, the producer would spill registers
  for (int block = 0; block < blocks; ++block, ++fill) {
    open_stage(shared, fill, pair, Config::kOperandBytes + (boxes - there) * kBoxBytes);
    uint64_t* full = shared.full(fill);
    if (kJobs == Sm90Jobs::kCounted && block == 0) *shared.taken(fill) = index;
    mbarrier_arrive(full);
    unsigned char* stage = shared.stage(fill);
    const int k = block * Config::kDepth;
    tma_load(stage, a, k, row, matrix, full);
    if (pair) {
      const auto half = static_cast<int>(rank);
      unsigned char* const to = stage + (1 + half) * Config::kOperandBytes;
      const int at = col + half * kCell;
      tma_load_multicast(to, b, kDense ? at : k, kDense ? k : at, matrix, full,
                         Config::kBothBlocks);
      if constexpr (kDense)
        tma_load_multicast(to + kBoxBytes, b, at + kBox, k, matrix, full, Config::kBothBlocks);
      continue;
    }
#pragma unroll 1
    for (int box = there; box < boxes; ++box) {
      const int at = col + box * kBox;
      tma_load(stage + Config::kOperandBytes + (box - there) * kBoxBytes, b, kDense ? at : k,
               kDense ? k : at, matrix, full);
    }
  }
  if (p.d) produce_d<kJobs>(args, job, shared, width, rank, fill);
}

/// Fills the ring for the jobs of a block. One thread calls this function. The thread reads the
/// next job while the copies of the current job are running, so that the next job is in L1 when the
/// consumers read it.
template <Sm90Jobs kJobs>
__device__ inline void produce(const Sm90Arguments& args, int first, int end, const Shared& shared,
                               uint32_t rank, int& fill) {
  TileJob next;
  if (first < end) next = args.jobs[first];
  for (int i = first; i < end; ++i) {
    const TileJob job = next;
    if (i + 1 < end) next = args.jobs[i + 1];
    produce_job<kJobs>(args, job, i, shared, rank, fill);
  }
}

/// Like produce, but for counted jobs. Takes the next job while the copies of the current job are
/// running. After the last job, a fill without bytes passes kNone as the index. The last block to
/// finish resets the counter. At that time, all blocks have received the results of their atomics,
/// so no fence is needed.
__device__ inline void produce_counted(const Sm90Arguments& args, const Shared& shared,
                                       uint32_t rank, int& fill) {
  const auto blocks = static_cast<int>(gridDim.x);
  for (int i = static_cast<int>(blockIdx.x); i < args.count;) {
    const int next = blocks + static_cast<int>(atomicAdd(args.taken, 1u));
    produce_job<Sm90Jobs::kCounted>(args, args.jobs[i], i, shared, rank, fill);
    i = next;
  }
  open_stage(shared, fill, false, 0);
  *shared.taken(fill) = kNone;
  mbarrier_arrive(shared.full(fill));
  if (atomicAdd(args.taken + 1, 1u) + 1 == gridDim.x) args.taken[0] = args.taken[1] = 0;
}

}  // namespace sm90

}  // namespace muonrt::cuda
