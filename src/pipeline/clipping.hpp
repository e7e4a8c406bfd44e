#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "pipeline/pipeline_context.hpp"

namespace muonrt {

/// A weight that QK-clip acts on. The logits of its layer begin at `logits_at`.
struct ClippedWeight {
  QkClip clip;  // its `logits` is filled in by Clipping
  int64_t logits_at = 0;
};

/// What happens on all ranks ahead of a step; fixed when the optimizer is created, equal on every
/// rank but for `counted`.
struct ClippingConfig {
  double clip_norm = 0.0;                 // 0: gradients are not clipped
  std::vector<int32_t> norm_params;       // parameters whose elements this rank adds to the norm
  std::vector<int32_t> clip_only_params;  // packed, but not in every step: scanned then, too
  int64_t logits = 0;                     // of all layers
  std::vector<ClippedWeight> clipped;     // all, of other ranks' too
  GradientTables tables;                  // in which the factor on the gradients is written
};

/// The work ahead of the gathers: the norm of all gradients, the factor on them, QK-clip's row
/// factors. At most one sum and one maximum over the ranks.
class Clipping {
 public:
  Clipping(const PipelineContext& context, ClippingConfig work);

  /// Enqueues it; what follows on the compute stream finds the tables and factors ready.
  void enqueue(const StepInputs& run);
  /// Copies what the host reports to memory of the host.
  void report();

  double grad_norm() const { return mirror_.data() ? *mirror_.as<double>() : 0.0; }
  /// The largest logits over all ranks, layer by layer.
  const float* logits() const { return reinterpret_cast<const float*>(mirror_.as<double>() + 1); }

 private:
  void exchange();

  const PipelineContext* context_;
  ClippingConfig work_;
  Buffer memory_, mirror_;
  int64_t* mine_ = nullptr;  // sums of squares of this rank, and of all
  int64_t* all_ = nullptr;
  double* norm_ = nullptr;
  float* my_logits_ = nullptr;
  float* logits_ = nullptr;
  std::unique_ptr<Event> ready_, reduced_;
};

}  // namespace muonrt
