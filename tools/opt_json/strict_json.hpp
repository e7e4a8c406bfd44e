#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace muonrt::tool {

/// How much of a text from outside is read before it is refused.
struct JsonLimits {
  int depth = 16;            // of nested objects and lists
  size_t values = 10000000;  // in all, keys included
};

/// Parses JSON that nobody vouches for: UTF-8, one value, no key twice in an object, no deeper and
/// no larger than the limits; works without recursion.
/// @param what  names the text in errors.
/// Throws std::runtime_error.
nlohmann::json parse_strict(std::string_view text, const std::string& what,
                            const JsonLimits& limits = {});

/// All of a file. Throws std::runtime_error where it cannot be read.
std::string read_text(const std::string& path);

/// Text from outside for a message: quoted, control characters escaped, shortened.
std::string shown(std::string_view text);

}  // namespace muonrt::tool
