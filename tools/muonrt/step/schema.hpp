#pragma once

#include <vector>

#include "muonrt/step/config.hpp"
#include "muonrt/step/value.hpp"

namespace muonrt::tool {

/// The keys of `defaults` and of rules (`name` left out); each is one row.
const std::vector<Key<ParamConfig>>& param_keys();

/// The value of `parts`.
PartsConfig read_parts(const Value& value);

}  // namespace muonrt::tool
