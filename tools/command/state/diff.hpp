#pragma once

#include "command/state/saved.hpp"

namespace muonrt::tool {

/// Prints the differences between two checkpoints, which may have been saved on different meshes.
/// @return  whether the checkpoints are equal.
bool diff_checkpoints(const Saved& first, const Saved& second, bool json);

}  // namespace muonrt::tool
