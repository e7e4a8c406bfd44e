#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/qk_clip.hpp"
#include "optimizer/settings/settings.hpp"

namespace muonrt {

/// Removes the components that wrappers add to the name of a module or parameter:
/// `_fsdp_wrapped_module`, `_checkpoint_wrapped_module`, `_orig_mod`, `_flat_param` and `_module`
/// anywhere in the name, and `module` at its beginning.
std::string normalize_name(std::string_view name);

/// The kind and the layer of an attention projection, for QK-clip.
struct QkLayer {
  QkKind kind = QkKind::kNone;
  int64_t layer = -1;  // the last component of the name that is a number; -1 if there is none
};
/// Determines the kind from the second last component of the normalized name, for example "wq" in
/// "layers.3.attention.wq.weight". routing.h lists the recognized names.
QkLayer parse_qk_layer(std::string_view name);
/// Returns the last component of the normalized name that is a number and fits into 64 bits, or -1
/// if there is none.
int64_t layer_of_name(std::string_view name);

/// Keys that the caller adds to the built-in rule. A key matches a name if the words of the key are
/// consecutive words of the normalized name. For example, "q_proj" matches "layers.0.q_proj.weight"
/// and "qProj", but not "qq_proj".
struct RoutingRules {
  std::vector<std::string> adamw_keys;
  std::vector<std::string> expert_keys;
};
struct Route {
  Role role = Role::kMuon;
  View view = View::kNone;
  std::string reason;  // for example "embedding ('embed_tokens')"
};
/// Chooses the role and the view of a parameter from the words of its name; routing.h describes the
/// rule.
/// Errors: INVALID_ARGUMENT if a tensor of three or more dimensions is neither a stack nor a
/// kernel.
Route route(const RoutingRules& rules, std::string_view name, int32_t ndim);

}  // namespace muonrt
