#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/machine/profile.hpp"

namespace muonrt {

/// A profile from tools/machines. CMake builds these profiles into the library.
struct NamedProfile {
  const char* name;
  const char* json;
};

/// Returns the names and texts of all built-in profiles, sorted by name.
const std::vector<NamedProfile>& named_profiles();
/// Returns the names of all built-in profiles as one text, such as "a100, b200".
std::string profile_names();

/// Returns the built-in profile of this name, or parses the argument if it is a JSON text.
/// @param what  names the argument in errors.
/// Errors: INVALID_ARGUMENT for an unknown name, and for a missing or unknown field, a field
/// without a source, or a number out of range; CORRUPT for invalid JSON.
MachineProfile find_profile(std::string_view name_or_json, const std::string& what);

}  // namespace muonrt
