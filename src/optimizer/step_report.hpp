#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/health.hpp"

namespace muonrt {

/// Describes where a rank found a non-finite value. The kinds are ordered by how close they are to
/// the cause. A gradient on this rank comes first, because a sum of gradients or an update may
/// contain a peer's gradient. Among sources of the same kind, those that did not overflow come
/// first.
struct NonfiniteSource {
  enum : int64_t { kGradient, kSum, kUpdate, kNothing };
  int64_t kind = kNothing, param = -1;
  int64_t overflowed = 0;  // 1 if the value is finite in f32 but overflows the transport dtype
};

/// A Muon parameter with a large update in the first step. `ratio` is the RMS of the update
/// relative to the RMS of the weights before the step.
struct LargeUpdate {
  int64_t param = -1;
  double ratio = 0;
};

/// The result of a step on this rank.
struct StepReport {
  bool skipped = false;
  int64_t step = 0;                                            // number of committed steps
  int64_t orthogonalized = 0, planned = 0, zero_matrices = 0;  // sums over all ranks
  int32_t nonfinite_rank = -1;
  int64_t nonfinite_param = -1;
  bool transport_overflow = false;
  int64_t bytes_sent = 0;
  double seconds = 0, local_seconds = 0, gemm_seconds = 0, exchange_seconds = 0;
  double exposed_seconds = 0, enqueue_seconds = 0;
  double grad_norm = 0;
  int64_t clipped_heads = 0;
  bool has_health = false;  // true if this step collected statistics
  LargeUpdate large_update;
};

/// The statistics of the last step that collected them.
struct HealthReport {
  /// Number of committed steps at the end of the step that collected the statistics; -1 if there is
  /// none.
  int64_t step = -1;
  bool skipped = false;
  std::vector<MatrixHealth> matrices;
  ReplicaDifference difference;
};

}  // namespace muonrt
