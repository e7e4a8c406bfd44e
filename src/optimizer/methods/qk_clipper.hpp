#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "backend/device.hpp"
#include "backend/scalars.hpp"
#include "optimizer/settings/settings.hpp"
#include "pipeline/clipping.hpp"

namespace muonrt {

/// The weights that QK-clip acts on, with the factors of their rows; and the heads it has clipped.
class QkClipper {
 public:
  using Heads = std::vector<std::pair<int32_t, int32_t>>;  // (layer, head), ascending

  QkClipper() = default;
  /// Takes the factors' memory and tells the views where it is.
  QkClipper(Device& device, const OptimizerSettings& settings, ParamView* params);

  /// Of all layers that parameters name.
  int64_t logits() const { return logits_; }
  const std::vector<ClippedWeight>& weights() const { return weights_; }

  /// A step was committed: notes the heads whose logits went beyond a threshold of a parameter that
  /// may clip them and took part. Takes no memory. @param logits  of all layers; read where there
  /// are any.
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
  std::vector<Weight> of_params_;
  Heads clipped_;  // has memory for all
};

}  // namespace muonrt
