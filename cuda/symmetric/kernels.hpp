#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/symmetric/problem.hpp"
#include "cuda/symmetric/tensor_map.hpp"

// The launchers of the symmetric kernels.

namespace muonrt::cuda {

struct Sm90Arguments {
  // Boxes of 128 rows; of 64 rows for C, and for B if jobs are medium. Only problems with D have d.
  TensorMap a[kProblems], b[kProblems], c[kProblems], d[kProblems];
  SymmetricProblem problems[kProblems];
  const TileJob* jobs;   // of mixed_jobs or medium_jobs
  const int32_t* first;  // index of each block's first job
  /// As in Sm90Tuning, but below the number of stages of every problem: the fill for which the
  /// second consumer waits before its first product. It releases that stage itself.
  int skew;
};
static_assert(sizeof(Sm90Arguments) <= 4096, "arguments of a kernel");

enum class Sm90Jobs {
  kMixed,   // of mixed_jobs; the depth of no problem is cut
  kSliced,  // of mixed_jobs, squares only; the depth of every problem is cut
  kMedium,  // of medium_jobs
};

/// A persistent grid.
struct Sm90Grid {
  Sm90Jobs jobs;
  int blocks;  // number of blocks of the list; even
  /// Whether blocks are launched in clusters of two, because the list has pairs, or because the
  /// grid leaves SMs to a communicator. NCCL launches clusters of two, too, and they need two free
  /// SMs in one GPC, which single blocks may not leave.
  bool clusters;
  bool early;  // as in Sm90Tuning
};

/// Call it once for each device, before the first launch.
void symmetric_sm90_prepare();
void symmetric_sm90(const Sm90Arguments& args, DType element, const Sm90Grid& grid,
                    cudaStream_t stream);

struct Sm90SmallArguments {
  TensorMap a[kProblems], b[kProblems], d[kProblems];  // boxes of 64 rows; d only if there is a D
  SymmetricProblem problems[kProblems];
  const TileJob* jobs;  // of small_jobs
};
static_assert(sizeof(Sm90SmallArguments) <= 4096, "arguments of a kernel");

/// Call it once for each device, before the first launch.
void symmetric_sm90_small_prepare();
/// @param slices  of every problem: 1, 2 or 4.
/// @param early   as in Sm90Tuning.
void symmetric_sm90_small(const Sm90SmallArguments& args, DType element, int slices, int64_t jobs,
                          bool early, cudaStream_t stream);

}  // namespace muonrt::cuda
