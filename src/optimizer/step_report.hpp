#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/health.hpp"

namespace muonrt {

/// Where a rank found a value that is not finite. A lower kind is nearer to the cause: the gradient
/// of a parameter on this rank comes before a sum of gradients or an update, which may contain a
/// peer's gradient. Of equal kinds a source that did not overflow comes first.
struct NonfiniteSource {
  enum : int64_t { kGradient, kSum, kUpdate, kNothing };
  int64_t kind = kNothing, param = -1;
  int64_t overflowed = 0;  // 1: the value is finite in f32, but overflows the transport dtype
};

/// A parameter of Muon that the first step has moved far, and the RMS of its update relative to
/// that of its weights before.
struct LargeUpdate {
  int64_t param = -1;
  double ratio = 0;
};

/// What a step did on this rank.
struct StepReport {
  bool skipped = false;
  int64_t step = 0;                                            // committed steps
  int64_t orthogonalized = 0, planned = 0, zero_matrices = 0;  // summed over ranks
  int32_t nonfinite_rank = -1;
  int64_t nonfinite_param = -1;
  bool transport_overflow = false;
  int64_t bytes_sent = 0;
  double seconds = 0, local_seconds = 0, gemm_seconds = 0, exchange_seconds = 0;
  double exposed_seconds = 0, enqueue_seconds = 0;
  double grad_norm = 0;
  int64_t clipped_heads = 0;
  bool has_health = false;  // this step collected statistics
  LargeUpdate large_update;
};

/// The statistics of the last step that collected them.
struct HealthReport {
  int64_t step = -1;  // committed steps after it; -1: no step has collected statistics yet
  bool skipped = false;
  std::vector<MatrixHealth> matrices;
  ReplicaDifference difference;
};

}  // namespace muonrt
