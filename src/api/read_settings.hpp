#pragma once

#include <memory>

#include "backend/device.hpp"
#include "muonrt/optimizer.h"
#include "optimizer/settings/settings.hpp"

namespace muonrt::api {

// These functions convert C structs to settings. Errors: INVALID_ARGUMENT, with the parameter or
// group and the field.

/// @param with_lists  If true, also reads the lists `custom` and `gram_restarts`, which are needed
///     to create an optimizer.
GroupSettings read_group(const muonrt_group_t* group, const std::string& who,
                         bool with_lists = true);
/// Returns the settings without groups and parameters.
/// @param options  Null means the defaults.
OptimizerSettings read_options(const muonrt_optimizer_options_t* options, int world);
OptimizerSettings read_settings(const muonrt_optimizer_options_t* options,
                                const muonrt_group_t* groups, int32_t n_groups,
                                const muonrt_param_t* params, int64_t n_params, int rank,
                                int world);
/// Creates the device that the settings describe. Errors: the same as muonrt_optimizer_create().
std::unique_ptr<Device> make_device(const OptimizerSettings& settings);
StepArgs read_step(const muonrt_step_args_t* args, int64_t n_params, int32_t n_groups);

}  // namespace muonrt::api
