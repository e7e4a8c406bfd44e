#pragma once

#include "backend/device.hpp"
#include "backend/scalars.hpp"
#include "optimizer/settings/settings.hpp"
#include "pipeline/pipeline.hpp"

namespace muonrt {

/// Returns the error of a step in which weights differ from their rounded master weights:
/// INVALID_ARGUMENT with the parameter, the first element that differs, and both values. Reads the
/// weights on the host and blocks. If there is not enough memory to read them, the error does not
/// name the element. If the pipeline has an error, this function may return that error instead.
Error stale_weights_error(Device& device, Pipeline& pipeline, const ParamSettings& param,
                          const ParamView& view);

}  // namespace muonrt
