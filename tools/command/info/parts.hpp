#pragma once

#include <string>

namespace muonrt::tool {

/// Lists the version of muonrt, and of each library in the command with its license.
std::string version_text();

}  // namespace muonrt::tool
