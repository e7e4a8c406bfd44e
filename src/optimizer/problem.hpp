#pragma once

#include <string>

#include "algo/newton_schulz.hpp"
#include "algo/restarts.hpp"
#include "optimizer/settings/settings.hpp"

namespace muonrt {

/// Returns the coefficients and restarts of every group. They are empty for AdamW groups.
/// Errors: INVALID_ARGUMENT or NOT_SUPPORTED, with the group, if its coefficients have no headroom
/// or if Q may grow without bound between its restarts.
std::vector<NewtonSchulz> make_newton_schulz(const OptimizerSettings& settings);

/// Returns the input of the planner: shapes, layouts, costs and scales. Does not read the buffers
/// of the parameters.
/// @param in_blocks  True for the plan of block steps, in which the matrices of groups with a block
///     period are divided into blocks.
Problem make_problem(const OptimizerSettings& settings, const std::vector<NewtonSchulz>& methods,
                     int world, bool in_blocks = false);

/// Returns the period of block-periodic orthogonalization, or 1 if no group has one.
int block_period(const OptimizerSettings& settings);

}  // namespace muonrt
