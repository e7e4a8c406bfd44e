#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "opt_json/config.hpp"

namespace muonrt::tool {

/// The role and the view of a parameter whose rule has no role.
struct RoleByName {
  bool muon = false;
  std::string view;  // view for Muon; if empty, the view of the rule
  std::string why;

  /// Returns whether a rule that roles_of returned has this role and view.
  bool fits(const ParamConfig& config) const;
};

/// If the rule has a role, returns only this rule. Otherwise returns one rule for each role and
/// view that a name can imply. If the rule sets view, batch_dims or row_dims, these settings apply
/// to all names.
std::vector<ParamConfig> roles_of(const ParamConfig& config);

/// Determines the role from name and shape with muonrt_routing_resolve.
/// @param config  one of the rules that roles_of returned.
/// @param file    the name of opt.json, for messages.
/// If name and shape do not determine a role, throws a std::runtime_error that names the parameter
/// and the key to set.
RoleByName role_by_name(const ParamConfig& config, const std::string& param,
                        const std::vector<int64_t>& shape, const std::string& file);

}  // namespace muonrt::tool
