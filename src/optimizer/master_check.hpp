#pragma once

#include <cstdint>

#include "backend/device.hpp"
#include "backend/scalars.hpp"
#include "optimizer/settings/settings.hpp"
#include "pipeline/pipeline.hpp"

namespace muonrt {

/// Compares parameters with their f32 master weights on the host. If a parameter was written after
/// its master weight, a step would overwrite it from the master weight.
class MasterCheck {
 public:
  MasterCheck() = default;
  /// Bytes of one of the two buffers for copies.
  /// @param numel  local elements of the largest parameter that has master weights.
  static int64_t bytes(int64_t numel);
  /// Allocates memory for copies if the host does not reach the device's memory.
  MasterCheck(Device& device, const OptimizerSettings& settings, const ParamView* params);

  /// Runs after the work on the caller's stream, and blocks. A bf16 parameter may be its master
  /// weight rounded up or down.
  /// Errors: INVALID_ARGUMENT, naming the parameter, the element and both values.
  void require_equal(Pipeline& pipeline, const OptimizerSettings& settings, const ParamView* params,
                     int64_t param) const;

 private:
  Device* device_ = nullptr;
  Buffer weights_, masters_;  // copies; empty: the host reads the originals
};

}  // namespace muonrt
