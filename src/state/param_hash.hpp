#pragma once

#include <cstdint>
#include <vector>

#include "state/copy/device_copy.hpp"
#include "state/state_shards.hpp"

namespace muonrt {

/// Returns, for each parameter, a hash of all its elements that does not depend on the mesh; see
/// hash_elements(). Collective.
/// @param of_masters  If true, hashes the master weights, rounded to the parameter's dtype, instead
///     of the parameter. The result is then 0 for a parameter without master weights.
std::vector<uint64_t> param_hashes(Optimizer& optimizer, bool of_masters = false);

/// Returns the element-wise sum over the ranks. Collective.
std::vector<uint64_t> sum_over_ranks(Comm& comm, const std::vector<uint64_t>& mine);

}  // namespace muonrt
