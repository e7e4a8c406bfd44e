#pragma once

#include <string>

namespace muonrt::tool {

/// Lists the version of muonrt, and the version and license of each library in the command.
std::string version_text();

}  // namespace muonrt::tool
