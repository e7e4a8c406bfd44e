#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "pipeline/pipeline_context.hpp"

namespace muonrt {

/// A weight to which QK-clip applies.
struct ClippedWeight {
  QkClip clip;            // Clipping sets its `logits`
  int64_t logits_at = 0;  // index of the first logit of its layer
};

/// The work that Clipping does in every step, fixed when the optimizer is created. clip_norm,
/// logits and clipped are equal on all ranks.
struct ClippingConfig {
  double clip_norm = 0.0;            // 0 means that gradients are not clipped
  std::vector<int32_t> norm_params;  // parameters whose gradients this rank adds to the norm
  // Parameters whose gradients are packed in some steps only. The stage `scan` also reads these
  // gradients, so they are checked in every step.
  std::vector<int32_t> clip_only_params;
  int64_t logits = 0;  // number of logits of all layers
  /// Contains all weights on every rank, including weights that other ranks hold.
  std::vector<ClippedWeight> clipped;
  GradientTables tables;  // receive the gradient factor
};

/// Computes the norm of all gradients, the factor of the gradients, and the row factors of QK-clip.
/// Runs before the gathers. Needs at most one sum and one maximum over the ranks.
class Clipping {
 public:
  Clipping(const PipelineContext& context, ClippingConfig config);

  /// Enqueues all work. Work that is enqueued later on the compute stream may use the tables and
  /// factors.
  void enqueue(const StepInputs& inputs);
  /// Enqueues the copies of the norm and the logits to host memory.
  void report();

  double grad_norm() const { return host_copy_.data() ? *host_copy_.as<double>() : 0.0; }
  /// Returns the maximum of each logit over all ranks, layer by layer.
  const float* logits() const {
    return reinterpret_cast<const float*>(host_copy_.as<double>() + 1);
  }

 private:
  void exchange();

  const PipelineContext* context_;
  ClippingConfig config_;
  Buffer memory_, host_copy_;
  int64_t* own_squares_ = nullptr;  // sum of squares of this rank
  int64_t* all_squares_ = nullptr;  // sum of squares of all ranks
  double* norm_ = nullptr;
  float* own_logits_ = nullptr;
  float* logits_ = nullptr;
  std::unique_ptr<Event> ready_, reduced_;
};

}  // namespace muonrt
