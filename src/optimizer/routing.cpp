#include "optimizer/routing.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.hpp"

namespace muonrt {

namespace {

std::vector<std::string_view> components_of(std::string_view name) {
  std::vector<std::string_view> out;
  while (true) {
    const size_t dot = name.find('.');
    out.push_back(name.substr(0, dot));
    if (dot == std::string_view::npos) return out;
    name.remove_prefix(dot + 1);
  }
}

bool is_wrapper(std::string_view part) {
  return part == "_fsdp_wrapped_module" || part == "_checkpoint_wrapped_module" ||
         part == "_orig_mod" || part == "_flat_param" || part == "_module";
}

std::optional<int64_t> number(std::string_view part) {
  int64_t out = 0;
  const char* const end = part.data() + part.size();
  const auto result = std::from_chars(part.data(), end, out);
  if (part.empty() || part.front() == '-' || result.ec != std::errc() || result.ptr != end)
    return std::nullopt;
  return out;
}

QkKind kind_of(std::string_view part) {
  if (part == "wq" || part == "q_proj") return QkKind::kQuery;
  if (part == "wk" || part == "k_proj") return QkKind::kKey;
  if (part == "wq_b" || part == "q_b_proj") return QkKind::kMlaQuery;
  if (part == "wkv_b" || part == "kv_b_proj") return QkKind::kMlaKeyValue;
  return QkKind::kNone;
}

bool matches(const std::vector<std::string>& keys, const std::string& name) {
  return std::any_of(keys.begin(), keys.end(),
                     [&](const std::string& key) { return name.find(key) != std::string::npos; });
}

}  // namespace

std::string normalize_name(std::string_view name) {
  std::string out;
  bool first = true;
  for (const std::string_view part : components_of(name)) {
    if (is_wrapper(part) || (first && part == "module")) continue;
    if (!first) out += '.';
    out += part;
    first = false;
  }
  return out;
}

QkLayer parse_qk_layer(std::string_view name) {
  const std::string normalized = normalize_name(name);
  const auto parts = components_of(normalized);
  if (parts.size() < 2) return {};
  QkLayer out;
  out.kind = kind_of(parts[parts.size() - 2]);
  if (out.kind == QkKind::kNone) return out;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (const auto layer = number(*part)) {
      out.layer = *layer;
      break;
    }
  }
  return out;
}

std::vector<std::string> RoutingRules::default_adamw_keys() {
  // Embeddings, the output head, learned gains of norms that are stored as matrices, and routers'
  // correction biases.
  return {"embed", "lm_head", "output.weight", "norm", "wte", "wpe", "e_score_correction_bias"};
}

Route route(const RoutingRules& rules, std::string_view name, int32_t ndim) {
  MUONRT_REQUIRE(ndim >= 0, Status::kInvalidArgument, "route: '", name, "' has ", ndim,
                 " dimensions; pass 0 or more");
  const std::string normalized = normalize_name(name);
  if (ndim < 2 || matches(rules.adamw_keys, normalized)) return {Role::kAdamW, View::kNone};
  if (ndim == 2) return {Role::kMuon, View::kNone};
  MUONRT_REQUIRE(ndim == 3 && matches(rules.expert_keys, normalized), Status::kInvalidArgument,
                 "route: '", name, "' has ", ndim,
                 " dimensions, and no rule says what they are (expert keys: ", rules.expert_keys,
                 "); name a key of 3-D expert stacks, or give it to AdamW");
  return {Role::kMuon, View::kStack};
}

}  // namespace muonrt
