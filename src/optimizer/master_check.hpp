#pragma once

#include <cstdint>

#include "backend/device.hpp"
#include "backend/scalars.hpp"
#include "optimizer/settings/settings.hpp"
#include "pipeline/pipeline.hpp"

namespace muonrt {

/// Compares parameters with their f32 master weights, where the host reads both: a weight that was
/// written after its master was taken would be overwritten from it.
class MasterCheck {
 public:
  MasterCheck() = default;
  /// Of one of the two buffers for copies, where the largest parameter with a master has `numel`
  /// elements here.
  static int64_t bytes(int64_t numel);
  /// Takes memory for copies, where the host does not reach the device's and there are masters.
  MasterCheck(Device& device, const OptimizerSettings& settings, const ParamView* params);

  /// Blocks, behind what the pipeline has joined. bf16 parameters may be rounded up or down.
  /// Errors: INVALID_ARGUMENT naming parameter, element and both values.
  void require_equal(Pipeline& pipeline, const OptimizerSettings& settings, const ParamView* params,
                     int64_t param) const;

 private:
  Device* device_ = nullptr;
  Buffer weights_, masters_;  // empty: compared where they lie
};

}  // namespace muonrt
