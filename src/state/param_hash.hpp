#pragma once

#include <cstdint>
#include <vector>

#include "state/device_copy.hpp"
#include "state/state_shards.hpp"

namespace muonrt {

/// Of each parameter a hash of all its elements, whatever the mesh: see hash_elements. Collective.
std::vector<uint64_t> param_hashes(Optimizer& optimizer);

}  // namespace muonrt
