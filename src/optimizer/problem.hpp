#pragma once

#include <string>

#include "algo/newton_schulz.hpp"
#include "algo/restarts.hpp"
#include "optimizer/settings/settings.hpp"

namespace muonrt {

/// Lists and restarts of every group (AdamW's stay empty). Errors: INVALID_ARGUMENT or
/// NOT_SUPPORTED, naming the group, for a list without headroom or without bounded restarts.
std::vector<NewtonSchulz> make_newton_schulz(const OptimizerSettings& settings);

/// The planner's view: shapes, layouts, costs, scales. No pointer is read.
/// @param in_blocks  of a block step: the matrices of groups with a block period are cut.
Problem make_problem(const OptimizerSettings& settings, const std::vector<NewtonSchulz>& methods,
                     int world, bool in_blocks = false);

/// The period of block-periodic orthogonalization; 1 where no group has one.
int block_period(const OptimizerSettings& settings);

}  // namespace muonrt
