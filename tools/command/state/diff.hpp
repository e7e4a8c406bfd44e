#pragma once

#include "command/state/saved.hpp"

namespace muonrt::tool {

/// Prints what differs between two checkpoints, on whatever meshes they were saved.
/// @return  whether nothing does.
bool diff_checkpoints(const Saved& first, const Saved& second, bool json);

}  // namespace muonrt::tool
