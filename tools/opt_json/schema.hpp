#pragma once

#include <vector>

#include "opt_json/config.hpp"
#include "opt_json/value.hpp"

namespace muonrt::tool {

/// The keys of `defaults` and of rules (`name` left out); each is one row.
const std::vector<Key<ParamConfig>>& param_keys();

/// The value of `parts`.
PartsConfig read_parts(const Value& value);

}  // namespace muonrt::tool
