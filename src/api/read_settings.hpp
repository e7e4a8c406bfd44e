#pragma once

#include "muonrt/optimizer.h"
#include "optimizer/settings/settings.hpp"

namespace muonrt::api {

/// The C structs as our settings. Errors: INVALID_ARGUMENT naming parameter or group and field.
/// @param with_lists  read what `custom` and `restarts` point to, as creation does.
GroupSettings read_group(const muonrt_group_t* group, const std::string& who,
                         bool with_lists = true);
OptimizerSettings read_settings(const muonrt_optimizer_options_t* options,
                                const muonrt_group_t* groups, int32_t n_groups,
                                const muonrt_param_t* params, int64_t n_params, int rank,
                                int world);
StepArgs read_step(const muonrt_step_args_t* step, int64_t n_params, int32_t n_groups);

}  // namespace muonrt::api
