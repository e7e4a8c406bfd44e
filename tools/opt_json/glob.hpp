#pragma once

#include <string_view>

namespace muonrt::tool {

/// Whether a shell-style pattern matches the whole of `name`: `*` any text (dots and slashes too),
/// `?` one character, `[abc]`, `[a-z]`, `[!a-z]` or `[^a-z]` one of (none of) a set, in which a `]`
/// that comes first stands for itself. A `[` that nothing closes stands for itself. No escapes: a
/// set of one character does that. Bytes are compared; costs O(pattern x name).
bool glob_matches(std::string_view pattern, std::string_view name);

}  // namespace muonrt::tool
