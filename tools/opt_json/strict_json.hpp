#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace muonrt::tool {

/// Parses JSON that nobody vouches for, as the library's parse_json.
/// @param what  names the text in errors.
/// Throws std::runtime_error.
nlohmann::json parse_strict(std::string_view text, const std::string& what);

/// All of a file. Throws std::runtime_error where it cannot be read.
std::string read_text(const std::string& path);

/// Text from outside for a message: quoted, control characters escaped, shortened.
std::string shown(std::string_view text);

}  // namespace muonrt::tool
