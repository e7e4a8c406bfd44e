#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "state/device_copy.hpp"
#include "state/pieces.hpp"

namespace muonrt {

/// What elements [element, ...) of a parameter add to its hash.
/// @param size  bytes of an element: 4 or 2.
uint64_t hash_of_elements(const std::string& name, int64_t element,
                          std::span<const unsigned char> values, int64_t size);

/// Of each parameter a hash of all its elements, whatever the mesh: the sum, which wraps, of
/// scrambled(scrambled(n + i) ^ b) over the elements i, where b are the element's bits and n is the
/// FNV-1a hash of the name. Collective.
std::vector<uint64_t> param_hashes(Optimizer& optimizer);

}  // namespace muonrt
