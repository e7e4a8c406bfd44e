#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/qk_clip.hpp"
#include "optimizer/settings/settings.hpp"

namespace muonrt {

/// Returns a module's name without the components that wrappers add: _fsdp_wrapped_module,
/// _checkpoint_wrapped_module, _orig_mod, _flat_param and _module anywhere, `module` at the
/// beginning.
std::string normalize_name(std::string_view name);

/// The kind and layer of an attention projection for QK-clip.
struct QkLayer {
  QkKind kind = QkKind::kNone;
  int64_t layer = -1;  // the last component of the name that is a number; -1: there is none
};
/// Finds the kind by the last but one component of the normalized name, for example "wq" of
/// "layers.3.attention.wq.weight"; routing.h lists the names.
QkLayer parse_qk_layer(std::string_view name);
/// The last component of the normalized name that is a number and fits into 64 bits, otherwise -1.
int64_t layer_of_name(std::string_view name);

/// Keys of the caller, next to the built-in rule. A key matches if its words follow each other in
/// the normalized name: "q_proj" matches "layers.0.q_proj.weight" and "qProj", but not "qq_proj".
struct RoutingRules {
  std::vector<std::string> adamw_keys;
  std::vector<std::string> expert_keys;
};
struct Route {
  Role role = Role::kMuon;
  View view = View::kNone;
  std::string reason;  // such as "embedding ('embed_tokens')"
};
/// Chooses role and view by the words of the name; routing.h describes the rule. Errors:
/// INVALID_ARGUMENT if a tensor of three or more dimensions is neither a stack nor a kernel.
Route route(const RoutingRules& rules, std::string_view name, int32_t ndim);

}  // namespace muonrt
