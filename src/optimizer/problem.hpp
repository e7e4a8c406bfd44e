#pragma once

#include <string>

#include "algo/newton_schulz.hpp"
#include "algo/restarts.hpp"
#include "optimizer/settings/settings.hpp"

namespace muonrt {

/// Returns the coefficients and restarts of every group; those of AdamW groups stay empty.
/// Errors: INVALID_ARGUMENT or NOT_SUPPORTED, naming the group, for coefficients without headroom
/// or without bounded restarts.
std::vector<NewtonSchulz> make_newton_schulz(const OptimizerSettings& settings);

/// Returns the input of the planner: shapes, layouts, costs and scales. Reads no buffer of the
/// parameters.
/// @param in_blocks  true for the plan of block steps: the matrices of groups with a block period
///     are cut into blocks.
Problem make_problem(const OptimizerSettings& settings, const std::vector<NewtonSchulz>& methods,
                     int world, bool in_blocks = false);

/// The period of block-periodic orthogonalization; 1 if no group has one.
int block_period(const OptimizerSettings& settings);

}  // namespace muonrt
