#pragma once

#include <string>

#include "model/simulate.hpp"
#include "optimizer/planning.hpp"

namespace muonrt::tool {

/// Explains each term of the headline by the numbers of the rank with the most work: which matrix,
/// which bytes over which link, and what is exposed because of what.
/// @param largest  the plan of the rank `memory_rank`, which needs the most memory.
std::string explain_step(const Planning& planning, const MachineProfile& profile,
                         const Simulation& step, const Planning& largest, int32_t memory_rank);

}  // namespace muonrt::tool
