#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muonrt::tool {

/// A published optimizer: a file in tools/optimizers.
struct NamedOptimizer {
  std::string_view name;
  std::string_view opt_json;
};

/// Returns all published optimizers, sorted by name.
const std::vector<NamedOptimizer>& named_optimizers();

/// Returns the opt.json of the optimizer `name`. If there is no such optimizer, throws
/// std::runtime_error with the known names.
std::string_view optimizer_json(const std::string& name);

}  // namespace muonrt::tool
