#include "train/config.hpp"

#include <stdexcept>

namespace muonrt::train {
namespace {

struct Preset {
  const char* name;
  Config config;
};

// The columns are layers, d_model, heads and context.
const Preset kPresets[] = {
    {"tiny", {2, 32, 2, 32}},
    {"small", {4, 128, 4, 64}},
    {"medium", {4, 256, 4, 128}},
};

}  // namespace

Config preset(const std::string& name) {
  std::string known;
  for (const Preset& entry : kPresets) {
    if (name == entry.name) return entry.config;
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw std::runtime_error("preset '" + name + "' does not exist; use one of " + known);
}

int64_t ParamSpec::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

std::vector<ParamSpec> param_specs(const Config& config) {
  const int64_t d = config.d_model;
  const int64_t mlp = config.d_mlp();
  std::vector<ParamSpec> specs;
  specs.push_back({"wte", {config.vocab, d}, Role::kEmbedding});
  specs.push_back({"wpe", {config.context, d}, Role::kEmbedding});
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    std::string prefix = "h";
    prefix += std::to_string(layer);
    prefix += '.';
    specs.push_back({prefix + "norm1", {d}, Role::kVector});
    specs.push_back({prefix + "wq", {d, d}, Role::kMatrix});
    specs.push_back({prefix + "wk", {d, d}, Role::kMatrix});
    specs.push_back({prefix + "wv", {d, d}, Role::kMatrix});
    specs.push_back({prefix + "wo", {d, d}, Role::kMatrix});
    specs.push_back({prefix + "norm2", {d}, Role::kVector});
    specs.push_back({prefix + "w_up", {mlp, d}, Role::kMatrix});
    specs.push_back({prefix + "w_down", {d, mlp}, Role::kMatrix});
  }
  specs.push_back({"norm", {d}, Role::kVector});
  specs.push_back({"head", {config.vocab, d}, Role::kEmbedding});
  return specs;
}

int64_t total_elements(const std::vector<ParamSpec>& specs) {
  int64_t total = 0;
  for (const ParamSpec& spec : specs) total += spec.elements();
  return total;
}

}  // namespace muonrt::train
