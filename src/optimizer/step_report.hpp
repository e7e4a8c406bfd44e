#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/health.hpp"

namespace muonrt {

/// What a rank tells of its findings, the nearer to the cause the lower: a parameter's gradient;
/// the sum of one, or an update, which may come of a peer's gradient. Of alike ones the least has
/// not overflowed.
struct NonfiniteSource {
  enum : int64_t { kGradient, kSum, kUpdate, kNothing };
  int64_t kind = kNothing, param = -1;
  int64_t overflowed = 0;  // 1: by the transport dtype alone
};

/// What a step did on this rank.
struct StepReport {
  bool skipped = false;
  int64_t step = 0;                                            // committed steps so far
  int64_t orthogonalized = 0, planned = 0, zero_matrices = 0;  // summed over ranks
  int32_t nonfinite_rank = -1;
  int64_t nonfinite_param = -1;
  bool transport_overflow = false;
  int64_t bytes_sent = 0;
  double seconds = 0, local_seconds = 0, gemm_seconds = 0, exchange_seconds = 0;
  double exposed_seconds = 0, enqueue_seconds = 0;
  double grad_norm = 0;
  int64_t clipped_heads = 0;
  bool has_health = false;  // measured in this step
};

/// What the last step that measured found.
struct HealthReport {
  int64_t step = -1;  // committed steps then; -1: none has measured yet
  bool skipped = false;
  std::vector<MatrixHealth> matrices;
  ReplicaDifference difference;
};

}  // namespace muonrt
