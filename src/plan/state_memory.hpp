#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.hpp"

namespace muonrt {

/// Returns for each rank the bytes of the state of local elements, plus ParamSpec::owner_bytes for
/// owned matrices. The state of summed gradients is not included.
std::vector<int64_t> local_state_bytes(const Plan& plan);

}  // namespace muonrt
