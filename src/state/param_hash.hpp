#pragma once

#include <cstdint>
#include <vector>

#include "state/device_copy.hpp"
#include "state/pieces.hpp"

namespace muonrt {

/// Of each parameter a hash of all its elements, whatever the mesh: the sum, which wraps, of
/// scrambled(scrambled(n + i) ^ b) over the elements i, where b are the element's bits and n is the
/// FNV-1a hash of the name. Collective.
std::vector<uint64_t> param_hashes(Optimizer& optimizer);

}  // namespace muonrt
