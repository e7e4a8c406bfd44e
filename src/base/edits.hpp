#pragma once

#include <cstddef>
#include <string_view>

namespace muonrt {

/// Returns the number of edits that turn `a` into `b`. An edit inserts, removes or replaces a
/// character, or swaps two adjacent characters (optimal string alignment distance).
size_t edits_between(std::string_view a, std::string_view b);

}  // namespace muonrt
