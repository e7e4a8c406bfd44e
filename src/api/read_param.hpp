#pragma once

#include <cstdint>

#include "api/read_layout.hpp"
#include "muonrt/param.h"
#include "optimizer/settings/settings.hpp"

namespace muonrt::api {

/// Converts parameter `index` of this rank. Errors: INVALID_ARGUMENT, with the parameter and the
/// field.
ParamSettings read_param(const muonrt_param_t* given, int64_t index, LayoutReader& layouts,
                         int rank);

}  // namespace muonrt::api
