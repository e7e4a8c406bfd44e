#pragma once

#include <cstdint>
#include <vector>

#include "state/device_copy.hpp"
#include "state/state_shards.hpp"

namespace muonrt {

/// Returns the hash of all elements of each parameter, which does not depend on the mesh; see
/// hash_elements. Collective.
std::vector<uint64_t> param_hashes(Optimizer& optimizer);

}  // namespace muonrt
