#pragma once

#include <string>

#include "algo/newton_schulz.hpp"
#include "algo/restarts.hpp"
#include "optimizer/agreement.hpp"
#include "optimizer/settings.hpp"

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

/// Everything the ranks must have in common at creation, with `device` as Device::describe gives
/// it.
Fingerprint make_fingerprint(const OptimizerSettings& settings, const std::string& device);

/// The settings of a group that may change between steps, as lines of a table.
void describe_scalars(Fingerprint& table, const std::string& who, const GroupSettings& group);

}  // namespace muonrt
