#pragma once

#include "command/state/saved.hpp"

namespace muonrt::tool {

/// Reads every byte, and prints what is wrong, a line each.
/// @return  whether nothing is.
bool verify_checkpoint(const Saved& saved, bool json);

}  // namespace muonrt::tool
