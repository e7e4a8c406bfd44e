#pragma once

#include "backend/device.hpp"
#include "backend/scalars.hpp"
#include "optimizer/settings/settings.hpp"
#include "pipeline/pipeline.hpp"

namespace muonrt {

/// Returns the error of a step that has found weights which are not their master weights rounded:
/// INVALID_ARGUMENT, naming the parameter and the first element with both values. Reads the weights
/// on the host and blocks. Without memory for that, the error names no element. Other errors: those
/// of the pipeline.
Error stale_weights_error(Device& device, Pipeline& pipeline, const ParamSettings& param,
                          const ParamView& view);

}  // namespace muonrt
