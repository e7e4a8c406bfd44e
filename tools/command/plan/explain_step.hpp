#pragma once

#include <string>

#include "model/simulate.hpp"
#include "optimizer/planning.hpp"

namespace muonrt::tool {

/// Explains each term of the headline with numbers of the rank with the most work: its largest
/// matrices, the bytes on each link, and why exchanges are exposed.
/// @param largest  the plan of the rank `memory_rank`, which needs the most memory.
std::string explain_step(const Planning& planning, const MachineProfile& profile,
                         const Simulation& step, const Planning& largest, int32_t memory_rank);

}  // namespace muonrt::tool
