#pragma once

#include <cuda_runtime.h>

#include "backend/scalars.hpp"

namespace muonrt::cuda {

// Findings are written by many blocks at once, and possibly from two streams.

__device__ inline void note_nonfinite(Findings& findings) {
  atomicExch(reinterpret_cast<unsigned long long*>(&findings.nonfinite), 1ull);
}

/// `param` >= 0. None (-1) is the largest number when read without its sign.
__device__ inline void note_nonfinite(Findings& findings, int64_t param) {
  note_nonfinite(findings);
  atomicMin(reinterpret_cast<unsigned long long*>(&findings.first_param),
            static_cast<unsigned long long>(param));
}

__device__ inline void note_zero_matrix(Findings& findings) {
  atomicAdd(reinterpret_cast<unsigned long long*>(&findings.zero_matrices), 1ull);
}

}  // namespace muonrt::cuda
