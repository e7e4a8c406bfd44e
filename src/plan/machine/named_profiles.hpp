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
/// @param what  Names the argument in errors.
/// Errors: INVALID_ARGUMENT if the name is unknown, or if a field is missing, unknown, out of range
/// or without a source; CORRUPT for invalid JSON.
MachineProfile find_profile(std::string_view name_or_json, const std::string& what);

}  // namespace muonrt
