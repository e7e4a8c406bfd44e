#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "opt_json/config.hpp"

namespace muonrt::tool {

/// The role and view of a parameter whose rule has no role.
struct RoleByName {
  bool muon = false;
  std::string view;  // view for Muon; if empty, the view of the rule
  std::string why;

  /// Returns whether a rule that roles_of returned has this role and view.
  bool fits(const ParamConfig& config) const;
};

/// Returns the rule itself if it has a role. Otherwise returns one rule for each role and view that
/// a name can imply. If the rule states a view, or dimensions of the stack or of the rows, they
/// apply to all names.
std::vector<ParamConfig> roles_of(const ParamConfig& config);

/// Chooses the role by name and shape, as muonrt_routing_resolve does.
/// @param config  one of the rules that roles_of returned.
/// @param file    the name of opt.json, for messages.
/// Throws a std::runtime_error that names the parameter and the key to set if no role follows.
RoleByName role_by_name(const ParamConfig& config, const std::string& param,
                        const std::vector<int64_t>& shape, const std::string& file);

}  // namespace muonrt::tool
