#pragma once

#include <cuda_runtime.h>

#include "backend/scalars.hpp"

namespace muonrt::cuda {

// Many thread blocks may write findings at the same time, possibly from two streams.

__device__ inline void note_nonfinite(Findings& findings) {
  atomicExch(reinterpret_cast<unsigned long long*>(&findings.nonfinite), 1ull);
}

/// Lowers `first` to `param`, which must be >= 0. The comparison is unsigned, so the value -1 (no
/// parameter) is larger than every parameter.
__device__ inline void lower(int64_t& first, int64_t param) {
  atomicMin(reinterpret_cast<unsigned long long*>(&first), static_cast<unsigned long long>(param));
}

/// @param in_f32  whether the value was already non-finite in f32, before it was rounded to the
///     message's dtype.
__device__ inline void note_nonfinite(Findings& findings, int64_t param, bool in_f32 = true) {
  note_nonfinite(findings);
  lower(findings.first_param, param);
  if (in_f32) lower(findings.first_in_f32, param);
}

__device__ inline void note_stale(Findings& findings, int64_t param) {
  lower(findings.first_stale, param);
}

/// Records that a commit wrote a non-finite value.
/// @param findings  may be null.
__device__ inline void note_written(Findings* findings) {
  if (findings) atomicExch(reinterpret_cast<unsigned long long*>(&findings->wrote_nonfinite), 1ull);
}

__device__ inline void note_zero_matrix(Findings& findings) {
  atomicAdd(reinterpret_cast<unsigned long long*>(&findings.zero_matrices), 1ull);
}

}  // namespace muonrt::cuda
