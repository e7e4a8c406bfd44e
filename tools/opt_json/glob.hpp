#pragma once

#include <string_view>

namespace muonrt::tool {

/// Returns whether a shell-style pattern matches the whole of `name`. `*` matches any text,
/// including dots and slashes. `?` matches one character. `[abc]` and `[a-z]` match one character
/// in the set, and `[!a-z]` or `[^a-z]` one character outside the set. A `]` at the start of a set
/// and a `[` without a closing `]` are ordinary characters. There is no escape character; write a
/// set with one character instead. The function compares bytes, in time O(pattern x name).
bool glob_matches(std::string_view pattern, std::string_view name);

}  // namespace muonrt::tool
