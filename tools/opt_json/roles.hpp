#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "opt_json/config.hpp"

namespace muonrt::tool {

/// The role and view of a parameter whose rule has no role.
struct RoleByName {
  bool muon = false;
  std::string view;  // of Muon; empty: that of the rule
  std::string why;

  /// Whether a rule of roles_of has this role and view.
  bool fits(const ParamConfig& config) const;
};

/// The rule itself if it has a role. Otherwise the rules for each role and view that a name can
/// have; a view, or dimensions of the stack or the rows, of the rule hold for all names.
std::vector<ParamConfig> roles_of(const ParamConfig& config);

/// Chooses the role by name and shape, as muonrt_routing_resolve does.
/// @param config  one of roles_of.
/// @param file    of opt.json, for messages.
/// Throws std::runtime_error that names the parameter and the key to set, if no role follows.
RoleByName role_by_name(const ParamConfig& config, const std::string& param,
                        const std::vector<int64_t>& shape, const std::string& file);

}  // namespace muonrt::tool
