#pragma once

#include "command/state/saved.hpp"

namespace muonrt::tool {

/// Prints the manifest. Errors: any error of Saved::open.
void show_checkpoint(const Saved& saved, bool json);

}  // namespace muonrt::tool
