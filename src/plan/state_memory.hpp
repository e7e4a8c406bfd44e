#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.hpp"

namespace muonrt {

/// By rank, in bytes: the state that lies with local elements, and that of owned matrices which is
/// kept besides (ParamSpec::owner_bytes). What is kept of sums is not in it.
std::vector<int64_t> local_state_bytes(const Plan& plan);

}  // namespace muonrt
