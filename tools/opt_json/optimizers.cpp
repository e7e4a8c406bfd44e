#include "opt_json/optimizers.hpp"

#include <stdexcept>

namespace muonrt::tool {

std::string_view optimizer_json(const std::string& name) {
  std::string known;
  for (const NamedOptimizer& one : named_optimizers()) {
    if (one.name == name) return one.opt_json;
    known += (known.empty() ? "" : ", ") + std::string(one.name);
  }
  throw std::runtime_error("optimizer '" + name + "' is not known; use one of " + known +
                           ", or the path of an opt.json");
}

}  // namespace muonrt::tool
