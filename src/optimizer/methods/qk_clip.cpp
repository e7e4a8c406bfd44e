#include "optimizer/methods/qk_clip.hpp"

#include <map>
#include <set>

#include "base/error.hpp"
#include "base/text.hpp"
#include "optimizer/routing.hpp"

namespace muonrt {

namespace {

/// Returns the number of rows of a weight of this kind, or -1 if QK-clip is off.
int64_t rows_of(const QkClipSettings& c) {
  const int64_t heads = c.heads, kv = c.kv_heads;
  switch (c.kind) {
    case QkKind::kQuery:
      return heads * c.head_dim;
    case QkKind::kKey:
      return kv * c.head_dim;
    case QkKind::kMlaQuery:
      return heads * (int64_t{c.nope} + c.rope);
    case QkKind::kMlaKeyValue:
      return kv * (int64_t{c.nope} + c.v_dim);
    case QkKind::kQkv:
    case QkKind::kQkvBlocks:
      return (heads + 2 * kv) * c.head_dim;
    case QkKind::kNone:
    case QkKind::kFromName:
      break;
  }
  return -1;
}

bool has_queries(QkKind kind) { return kind != QkKind::kKey && kind != QkKind::kMlaKeyValue; }
bool has_keys(QkKind kind) { return kind != QkKind::kQuery && kind != QkKind::kMlaQuery; }

/// Rejects two parameters whose names indicate the same weights (query or key) of the same layer,
/// because both would use the same logits. An encoder and a decoder can have such names.
void check_names(const OptimizerSettings& settings) {
  std::map<std::pair<int32_t, bool>, const ParamSettings*> found;
  for (const ParamSettings& p : settings.params) {
    const QkClipSettings& c = p.qk_clip;
    if (c.kind == QkKind::kNone) continue;
    for (const bool keys : {false, true}) {
      if (!(keys ? has_keys(c.kind) : has_queries(c.kind))) continue;
      const auto [at, is_new] = found.try_emplace({c.layer, keys}, &p);
      const ParamSettings& first = *at->second;
      MUONRT_REQUIRE(
          is_new || !(c.from_name || first.qk_clip.from_name), kInvalidArg, "param '", p.name,
          "': qk_clip clips the ", keys ? "keys" : "queries", " of layer ", c.layer,
          ", as does that of param '", first.name,
          "', so both would use the same logits; set kind and layer of one of them, or leave its "
          "qk_clip out");
    }
  }
}

}  // namespace

const char* name_of(QkKind kind) {
  switch (kind) {
    case QkKind::kNone:
      return "none";
    case QkKind::kQuery:
      return "q";
    case QkKind::kKey:
      return "k";
    case QkKind::kMlaQuery:
      return "mla_q";
    case QkKind::kMlaKeyValue:
      return "mla_kv";
    case QkKind::kQkv:
      return "qkv";
    case QkKind::kQkvBlocks:
      return "qkv_blocks";
    case QkKind::kFromName:
      return "from_name";
  }
  return "unknown";
}

void resolve_qk_clip(QkClipSettings& c, const std::string& param, int32_t ndim) {
  const std::string who = cat("param '", param, "': qk_clip");
  if (c.kind == QkKind::kFromName) {
    c.kind = ndim < 2 ? QkKind::kNone : parse_qk_layer(param).kind;
    if (c.kind == QkKind::kNone) return;
    c.layer = -1;
    if (c.nope > 0 || c.rope > 0) {
      MUONRT_REQUIRE(c.kind != QkKind::kKey, kInvalidArg, who, ": nope is ", c.nope,
                     " and rope is ", c.rope,
                     ", which only MLA uses, but by its name the weight has kind '",
                     name_of(c.kind), "'; set kind, or leave qk_clip out");
      MUONRT_REQUIRE(c.head_dim == 0 || c.head_dim == int64_t{c.nope} + c.rope, kInvalidArg, who,
                     ": head_dim is ", c.head_dim, ", but nope + rope is ",
                     int64_t{c.nope} + c.rope, "; set head_dim to 0");
      if (c.kind == QkKind::kQuery) c.kind = QkKind::kMlaQuery;
      if (c.kind == QkKind::kMlaQuery) c.head_dim = c.v_dim = 0;
      if (c.kind == QkKind::kMlaKeyValue) c.head_dim = c.rope = 0;
    }
  }
  if (c.kind == QkKind::kNone || c.layer != -1) return;
  const int64_t layer = layer_of_name(param);
  MUONRT_REQUIRE(layer >= 0 && layer <= 1 << 20, kInvalidArg, who, ": kind is '", name_of(c.kind),
                 "', but the layer by the name is ", layer,
                 ", which must be between 0 and 1048576; set kind and layer");
  c.layer = static_cast<int32_t>(layer);
  c.from_name = true;
}

std::vector<QkLogits> qk_layers(const OptimizerSettings& settings) {
  check_names(settings);
  std::map<int32_t, std::pair<int32_t, const ParamSettings*>> found;
  for (const ParamSettings& p : settings.params) {
    if (p.qk_clip.kind == QkKind::kNone) continue;
    const auto [at, is_new] = found.try_emplace(p.qk_clip.layer, p.qk_clip.heads, &p);
    MUONRT_REQUIRE(is_new || at->second.first == p.qk_clip.heads, kInvalidArg, "param '", p.name,
                   "': qk_clip has ", p.qk_clip.heads, " heads, but param '",
                   at->second.second->name, "' of the same layer ", p.qk_clip.layer, " has ",
                   at->second.first, "; give every weight of a layer its query heads");
  }
  std::vector<QkLogits> out;
  int64_t at = 0;
  for (const auto& [layer, heads_and_param] : found) {
    out.push_back({layer, heads_and_param.first, at});
    at += heads_and_param.first;
  }
  return out;
}

int64_t logit_count(const std::vector<QkLogits>& layers) {
  return layers.empty() ? 0 : layers.back().logits_at + layers.back().heads;
}

void validate_qk_clip(const OptimizerSettings& settings, const ParamSettings& p) {
  const QkClipSettings& c = p.qk_clip;
  if (c.kind == QkKind::kNone) return;
  const std::string who = cat("param '", p.name, "': qk_clip");
  const bool muon = settings.groups[static_cast<size_t>(p.group)].role == Role::kMuon;
  MUONRT_REQUIRE(muon && p.layout.dims() == 2, Status::kNotSupported, who, " is '", name_of(c.kind),
                 "', but only Muon matrices can be clipped; leave it out");
  MUONRT_REQUIRE(!p.transposed, Status::kNotSupported, who, " is '", name_of(c.kind),
                 "', but transposed is 1, so its heads are stored as columns, and only rows can be "
                 "clipped; store it as outputs x inputs, or leave one of them out");
  for (const auto& [field, value, low] : {std::tuple{"layer", c.layer, 0},
                                          {"heads", c.heads, 1},
                                          {"kv_heads", c.kv_heads, 1},
                                          {"head_dim", c.head_dim, 0},
                                          {"nope", c.nope, 0},
                                          {"rope", c.rope, 0},
                                          {"v_dim", c.v_dim, 0}}) {
    MUONRT_REQUIRE(value >= low && value <= 1 << 20, kInvalidArg, who, ": ", field, " is ", value,
                   ", but must be between ", low, " and 1048576; use a number in that range");
  }
  const bool mla = c.kind == QkKind::kMlaQuery || c.kind == QkKind::kMlaKeyValue;
  for (const auto& [field, value, has] : {std::tuple{"head_dim", c.head_dim, !mla},
                                          {"nope", c.nope, mla},
                                          {"rope", c.rope, c.kind == QkKind::kMlaQuery},
                                          {"v_dim", c.v_dim, c.kind == QkKind::kMlaKeyValue}}) {
    MUONRT_REQUIRE(has || value == 0, kInvalidArg, who, ": ", field, " is ", value, ", but '",
                   name_of(c.kind), "' has none; set it to 0");
  }
  MUONRT_REQUIRE(c.heads % c.kv_heads == 0, kInvalidArg, who, ": ", c.heads,
                 " heads are not a multiple of kv_heads, which is ", c.kv_heads,
                 "; set kv_heads to a divisor of heads");
  const int64_t rows = p.layout.shape()[0];
  MUONRT_REQUIRE(rows_of(c) == rows, kInvalidArg, who, ": with kind '", name_of(c.kind),
                 "', its heads and sizes give ", rows_of(c), " rows, but shape is ",
                 p.layout.shape(), "; set the heads and sizes of this weight");
  MUONRT_REQUIRE(c.threshold > 0 && c.threshold < 1e30, kInvalidArg, who, ": threshold is ",
                 c.threshold, ", but must be above 0 and below 1e30; use a number in that range");
  MUONRT_REQUIRE(c.exponent >= 0 && c.exponent <= 1, kInvalidArg, who, ": exponent is ", c.exponent,
                 ", but must be between 0 and 1; use a number in that range");
  std::set<int32_t> seen;
  for (const int32_t head : c.select) {
    MUONRT_REQUIRE(head >= 0 && head < c.heads && seen.insert(head).second, kInvalidArg, who,
                   ": select contains head ", head, ", but may contain only heads from 0 to ",
                   c.heads - 1, ", each once; remove it");
  }
}

std::string describe(const QkClipSettings& c) {
  if (c.kind == QkKind::kNone) return "none";
  return cat(name_of(c.kind), " of layer ", c.layer, ", heads ", c.heads, ", kv_heads ", c.kv_heads,
             ", head_dim ", c.head_dim, ", nope ", c.nope, ", rope ", c.rope, ", v_dim ", c.v_dim,
             c.selects ? ", select " : ", all heads ", c.select, ", threshold ", c.threshold,
             ", exponent ", c.exponent);
}

}  // namespace muonrt
