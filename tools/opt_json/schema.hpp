#pragma once

#include <vector>

#include "opt_json/config.hpp"
#include "opt_json/value.hpp"

namespace muonrt::tool {

/// Returns the keys of `defaults` and of rules, except `name`.
const std::vector<Key<ParamConfig>>& param_keys();

/// Reads the value of `parts`.
PartsConfig read_parts(const Value& value);

}  // namespace muonrt::tool
