#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "command/info/tensor_layout.hpp"
#include "muonrt/muonrt.hpp"

namespace muonrt::tool {

/// Collective: a whole tensor on rank 0, nothing elsewhere. What several ranks hold must be equal;
/// throws on rank 0 where it is not, or where nobody holds an element.
/// @param bytes  of an element.
/// @param mine   the elements that this rank has, and where in `local`.
/// @param what   names the tensor in errors.
std::vector<unsigned char> gather_elements(Comm& comm, int64_t elements, int64_t bytes,
                                           const std::vector<Stretch>& mine, const void* local,
                                           const std::string& what);

}  // namespace muonrt::tool
