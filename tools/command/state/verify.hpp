#pragma once

#include "command/state/saved.hpp"

namespace muonrt::tool {

/// Reads every byte and prints each error in a line.
/// @return  whether there is no error.
bool verify_checkpoint(const Saved& saved, bool json);

}  // namespace muonrt::tool
