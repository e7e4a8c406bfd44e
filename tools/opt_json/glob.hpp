#pragma once

#include <string_view>

namespace muonrt::tool {

/// Whether a shell-style pattern matches the whole of `name`. `*` matches any text, dots and
/// slashes included, `?` one character, and `[abc]`, `[a-z]`, `[!a-z]` or `[^a-z]` one character
/// that is (not) in the set. A `]` at the beginning of a set and a `[` without a closing `]` are
/// ordinary characters. There are no escapes; use a set with one character. Compares bytes, in time
/// O(pattern x name).
bool glob_matches(std::string_view pattern, std::string_view name);

}  // namespace muonrt::tool
