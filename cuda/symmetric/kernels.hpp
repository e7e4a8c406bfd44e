#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/symmetric/problem.hpp"

// The launchers of the symmetric kernels.

namespace muonrt::cuda {

/// Sums of one cell's slice on their way from one kernel to the next.
constexpr int64_t kPartialFloats = int64_t{kCell} * kCell;

struct SymmetricArguments {
  SymmetricProblem problems[kProblems];
  const TileJob* jobs;
  float* partials;  // kPartialFloats for each job where slices > 1
  int32_t slices;   // of every problem of this launch
};

/// Once for a device, before the first launch.
void symmetric_sm80_prepare();
/// @param jobs  of square_jobs, all of problems with args.slices slices; a multiple of it.
void symmetric_sm80(const SymmetricArguments& args, DType element, int64_t jobs,
                    cudaStream_t stream);

}  // namespace muonrt::cuda
