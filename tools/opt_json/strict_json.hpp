#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace muonrt::tool {

/// Parses untrusted JSON with the limits of the library's parse_json. Throws std::runtime_error.
/// @param what  the name of the text, for messages.
nlohmann::json parse_strict(std::string_view text, const std::string& what);

/// Returns the content of a file. Throws std::runtime_error if it cannot be read.
std::string read_text(const std::string& path);

/// Formats untrusted text for a message: quotes and shortens it, and escapes control characters.
std::string shown(std::string_view text);

}  // namespace muonrt::tool
