#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/symmetric/problem.hpp"
#include "cuda/symmetric/tensor_map.hpp"

// Functions that launch the symmetric kernels.

namespace muonrt::cuda {

struct Sm90Arguments {
  // A box of C has 64 rows. A box of B also has 64 rows if jobs are medium or dense. All other
  // boxes have 128 rows. `d` is set only for problems with D.
  TensorMap a[kProblems], b[kProblems], c[kProblems], d[kProblems];
  SymmetricProblem problems[kProblems];
  const TileJob* jobs;   // from mixed_jobs or medium_jobs
  const int32_t* first;  // index of each block's first job; unused if jobs are counted
  /// The second consumer waits for the fill with this index before its first product, as described
  /// in Sm90Tuning, and releases the stage itself. The index is smaller than the number of stages
  /// of every problem.
  int skew;
  // Used only if jobs are counted. `count` is the number of jobs. `taken` points to two numbers
  // that are 0 before and after each launch: the number of jobs that blocks have taken after their
  // first jobs, and the number of blocks that have ended.
  int32_t count;
  uint32_t* taken;
};
static_assert(sizeof(Sm90Arguments) <= 4096, "arguments of a kernel");

enum class Sm90Jobs {
  kMixed,   // from mixed_jobs; every problem has one slice
  kSliced,  // from mixed_jobs, only squares; every problem has several slices
  kMedium,  // from medium_jobs
  kDense,   // from mixed_jobs, for dense products
  /// From mixed_jobs without pairs, in the order of in_turn. Block b begins with job b, and then
  /// takes the next job that no block has taken.
  kCounted,
};

/// The size and kind of a persistent grid.
struct Sm90Grid {
  Sm90Jobs jobs;
  int blocks;  // number of blocks of the list; even
  /// True if blocks are launched in clusters of two, because the list contains pairs or the grid
  /// leaves SMs to a communicator. NCCL also launches clusters of two, which need two free SMs in
  /// the same GPC. A grid of single blocks might not leave two such SMs free.
  bool clusters;
  bool early;  // see Sm90Tuning
};

/// Prepares the kernels. Call this function once for each device, before the first launch.
void symmetric_sm90_prepare();
void symmetric_sm90(const Sm90Arguments& args, DType element, const Sm90Grid& grid,
                    cudaStream_t stream);

struct Sm90SmallArguments {
  // boxes of 64 rows; d is set only if there is a D
  TensorMap a[kProblems], b[kProblems], d[kProblems];
  SymmetricProblem problems[kProblems];
  const TileJob* jobs;  // from small_jobs
};
static_assert(sizeof(Sm90SmallArguments) <= 4096, "arguments of a kernel");

/// Prepares the kernels. Call this function once for each device, before the first launch.
void symmetric_sm90_small_prepare();
/// @param slices  number of slices of every problem: 1, 2 or 4.
/// @param early   see Sm90Tuning.
void symmetric_sm90_small(const Sm90SmallArguments& args, DType element, int slices, int64_t jobs,
                          bool early, cudaStream_t stream);

}  // namespace muonrt::cuda
