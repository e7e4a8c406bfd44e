#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muonrt::tool {

/// A published optimizer: a file of tools/optimizers.
struct NamedOptimizer {
  std::string_view name;
  std::string_view opt_json;
};

/// All of them, by name.
const std::vector<NamedOptimizer>& named_optimizers();

/// The opt.json of `name`. Throws std::runtime_error that lists the names.
std::string_view optimizer_json(const std::string& name);

}  // namespace muonrt::tool
