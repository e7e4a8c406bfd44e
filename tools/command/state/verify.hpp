#pragma once

#include "command/state/saved.hpp"

namespace muonrt::tool {

/// Reads every byte and prints one line for each error.
/// @return  true if there are no errors.
bool verify_checkpoint(const Saved& saved, bool json);

}  // namespace muonrt::tool
