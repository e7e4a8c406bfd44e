#include "opt_json/roles.hpp"

#include <algorithm>
#include <stdexcept>

#include "opt_json/strict_json.hpp"

namespace muonrt::tool {

namespace {

constexpr const char* kViews[] = {"none", "stack", "flatten"};

/// Returns whether the rule states how dimensions form matrices.
bool has_dims(const ParamConfig& c) { return c.view || c.batch_dims || c.row_dims; }

}  // namespace

bool RoleByName::fits(const ParamConfig& config) const {
  return config.is_muon() == muon && (!muon || view.empty() || config.view == view);
}

std::vector<ParamConfig> roles_of(const ParamConfig& config) {
  std::vector<ParamConfig> out;
  if (config.role) return {config};
  const auto add = [&](const char* role) -> ParamConfig& {
    ParamConfig& c = out.emplace_back(config);
    c.role = role;
    c.by_name = true;
    return c;
  };
  if (has_dims(config)) {
    add("muon");
  } else {
    for (const char* view : kViews) {
      ParamConfig& c = add("muon");
      c.view = view;
      c.view_by_name = true;
    }
  }
  add("adamw");
  return out;
}

RoleByName role_by_name(const ParamConfig& config, const std::string& param,
                        const std::vector<int64_t>& shape, const std::string& file) {
  if (shape.size() > 1 &&
      std::count_if(shape.begin(), shape.end(), [](int64_t n) { return n > 1; }) <= 1)
    return {false, "", "at most one dimension is greater than 1"};
  // If the rule states how the dimensions form matrices, only the name determines the role.
  const bool dims = !config.view_by_name;
  const auto ndim = static_cast<int32_t>(dims ? std::min<size_t>(shape.size(), 2) : shape.size());
  enum muonrt_role role;
  enum muonrt_view view;
  char why[160];
  if (muonrt_routing_resolve(&role, &view, nullptr, param.c_str(), ndim) != MUONRT_OK ||
      muonrt_routing_explain(why, sizeof why, nullptr, nullptr, param.c_str(), ndim) != MUONRT_OK)
    throw std::runtime_error(file + ": " + config.rule + ": param " + shown(param) +
                             ": its name does not show what its " + std::to_string(ndim) +
                             " dimensions are; set role to adamw, or view to stack or flatten, " +
                             "in a rule for it");
  if (role == MUONRT_ROLE_ADAMW) return {false, "", why};
  if (!dims && view == MUONRT_VIEW_FLATTEN && shape[1] == 1)
    return {false, "", "depthwise convolution"};
  return {true, dims ? "" : kViews[view], why};
}

}  // namespace muonrt::tool
