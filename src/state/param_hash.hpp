#pragma once

#include <cstdint>
#include <vector>

#include "state/device_copy.hpp"
#include "state/state_shards.hpp"

namespace muonrt {

/// Returns the hash of all elements of each parameter, which does not depend on the mesh; see
/// hash_elements. Collective.
/// @param of_masters  hashes of the master weights instead, rounded to the parameter's dtype; 0 for
///     a parameter without master weights.
std::vector<uint64_t> param_hashes(Optimizer& optimizer, bool of_masters = false);

/// Returns the sums over the ranks. Collective.
std::vector<uint64_t> sum_over_ranks(Comm& comm, const std::vector<uint64_t>& mine);

}  // namespace muonrt
