#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/machine/profile.hpp"

namespace muonrt {

/// A profile of tools/machines, which CMake builds into the library.
struct NamedProfile {
  const char* name;
  const char* json;
};

/// Returns the names and texts of all of them, sorted by name.
const std::vector<NamedProfile>& named_profiles();
/// "a100, b200, ...".
std::string profile_names();

/// Returns the profile of this name, or the one that a JSON text describes.
/// @param what  names the argument in errors.
/// Errors: INVALID_ARGUMENT for an unknown name, and for a missing or unknown field, a field
/// without a source, or a number out of range; CORRUPT for invalid JSON.
MachineProfile find_profile(std::string_view name_or_json, const std::string& what);

}  // namespace muonrt
