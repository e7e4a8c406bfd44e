#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "backend/device.hpp"
#include "backend/scalars.hpp"
#include "optimizer/settings/settings.hpp"
#include "pipeline/clipping.hpp"

namespace muonrt {

/// Holds the row factors of the weights to which QK-clip applies, and the list of clipped heads.
class QkClipper {
 public:
  using Heads = std::vector<std::pair<int32_t, int32_t>>;  // (layer, head), ascending

  QkClipper() = default;
  /// Allocates the factors and sets ParamView::row_factors to them.
  QkClipper(Device& device, const OptimizerSettings& settings, ParamView* params);

  /// Returns the number of logits of all layers to which parameters refer.
  int64_t logits() const { return logits_; }
  const std::vector<ClippedWeight>& weights() const { return weights_; }

  /// Lists, for each active parameter, the heads that it may clip and whose logit exceeds its
  /// threshold. Call this function after a step has been committed. Does not allocate.
  /// @param logits  Logits of all layers; not read if there are none.
  void on_commit(const OptimizerSettings& settings, const ParamView* params, const float* logits);
  const Heads& clipped() const { return clipped_; }

 private:
  Buffer factors_, selections_;
  std::vector<ClippedWeight> weights_;
  int64_t logits_ = 0;
  struct Weight {
    size_t param;
    int64_t logits_at;
  };
  std::vector<Weight> clipping_params_;
  Heads clipped_;  // its reserved memory is sufficient for all heads
};

}  // namespace muonrt
