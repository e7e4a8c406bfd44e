#include "optimizer/routing.hpp"

#include <charconv>
#include <optional>

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
  if (part == "linear_qkv" || part == "query_key_value" || part == "wqkv") return QkKind::kQkv;
  if (part == "c_attn" || part == "qkv_proj" || part == "qkv" || part == "Wqkv")
    return QkKind::kQkvBlocks;
  return QkKind::kNone;
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

int64_t layer_of_name(std::string_view name) {
  const std::string normalized = normalize_name(name);
  const auto parts = components_of(normalized);
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (const auto layer = number(*part)) return *layer;
  }
  return -1;
}

QkLayer parse_qk_layer(std::string_view name) {
  const std::string normalized = normalize_name(name);
  const auto parts = components_of(normalized);
  if (parts.size() < 2) return {};
  const QkKind kind = kind_of(parts[parts.size() - 2]);
  return {kind, kind == QkKind::kNone ? -1 : layer_of_name(name)};
}

}  // namespace muonrt
