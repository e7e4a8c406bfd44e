#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/qk_clip.hpp"
#include "optimizer/settings/settings.hpp"

namespace muonrt {

/// A module's name without what wrappers put into it: the parts _fsdp_wrapped_module,
/// _checkpoint_wrapped_module, _orig_mod, _flat_param and _module anywhere, `module` at the
/// beginning.
std::string normalize_name(std::string_view name);

/// What a projection of attention is to QK-clip.
struct QkLayer {
  QkKind kind = QkKind::kNone;
  int64_t layer = -1;  // the last part of the name that is a number; -1: none is
};
/// By the part before the last ("wq" of "layers.3.attention.wq.weight"): wq, q_proj; wk, k_proj;
/// wq_b, q_b_proj; wkv_b, kv_b_proj. Wrappers are ignored. A number too large for 64 bits is none.
QkLayer parse_qk_layer(std::string_view name);

/// Which parameters get Muon. A key matches where it occurs in the normalized name.
struct RoutingRules {
  std::vector<std::string> adamw_keys = default_adamw_keys();
  std::vector<std::string> expert_keys;
  static std::vector<std::string> default_adamw_keys();
};
struct Route {
  Role role = Role::kMuon;
  View view = View::kNone;
};
/// AdamW for everything below two dimensions, and for what an AdamW key matches; Muon for the other
/// matrices; a stack of matrices where an expert key matches three dimensions.
/// Errors: INVALID_ARGUMENT for three or more dimensions that no rule declares.
Route route(const RoutingRules& rules, std::string_view name, int32_t ndim);

}  // namespace muonrt
