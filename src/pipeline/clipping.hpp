#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "pipeline/pipeline_context.hpp"

namespace muonrt {

/// A weight that QK-clip acts on.
struct ClippedWeight {
  QkClip clip;            // Clipping sets its `logits`
  int64_t logits_at = 0;  // index of the first logit of its layer
};

/// What Clipping does in every step. It is fixed when the optimizer is created. clip_norm, logits
/// and clipped are equal on all ranks.
struct ClippingConfig {
  double clip_norm = 0.0;            // 0: gradients are not clipped
  std::vector<int32_t> norm_params;  // parameters whose elements this rank adds to the norm
  // Parameters whose gradients are packed, but not in every step. The stage `scan` checks them,
  // too, so that their gradients are checked in the other steps.
  std::vector<int32_t> clip_only_params;
  int64_t logits = 0;                  // number of logits of all layers
  std::vector<ClippedWeight> clipped;  // on every rank all weights, also those of other ranks
  GradientTables tables;               // the factor on the gradients is written here
};

/// Runs before the gathers: computes the norm of all gradients, the factor on them, and the row
/// factors of QK-clip. It needs at most one sum and one maximum over the ranks.
class Clipping {
 public:
  Clipping(const PipelineContext& context, ClippingConfig config);

  /// Enqueues everything. Later work on the compute stream finds the tables and factors ready.
  void enqueue(const StepInputs& inputs);
  /// Enqueues the copies of the norm and the logits to host memory.
  void report();

  double grad_norm() const { return host_copy_.data() ? *host_copy_.as<double>() : 0.0; }
  /// The maximum over all ranks of each logit, by layer.
  const float* logits() const {
    return reinterpret_cast<const float*>(host_copy_.as<double>() + 1);
  }

 private:
  void exchange();

  const PipelineContext* context_;
  ClippingConfig config_;
  Buffer memory_, host_copy_;
  int64_t* own_squares_ = nullptr;  // sums of squares of this rank
  int64_t* all_squares_ = nullptr;  // sums over all ranks
  double* norm_ = nullptr;
  float* own_logits_ = nullptr;
  float* logits_ = nullptr;
  std::unique_ptr<Event> ready_, reduced_;
};

}  // namespace muonrt
