#include "opt_json/schema.hpp"

#include <limits>
#include <type_traits>

namespace muonrt::tool {

namespace {

using P = ParamConfig;

using G = muonrt_group_t;

constexpr Word kMasterKinds[] = {{"none", MUONRT_MASTER_NONE},
                                 {"owned", MUONRT_MASTER_OWNED},
                                 {"remainder", MUONRT_MASTER_REMAINDER},
                                 {"stochastic", MUONRT_MASTER_STOCHASTIC}};
constexpr Word kDtypes[] = {
    {"f32", MUONRT_DTYPE_F32}, {"bf16", MUONRT_DTYPE_BF16}, {"f16", MUONRT_DTYPE_F16}};
constexpr std::span<const Word> kStorageDtypes(kDtypes, 2);

// Reads a value, and checks that it is within the limits in its row.

double value_of(const Number& rule, const Value& v) {
  return rule.open ? v.below_one(rule.low, /*in_f32=*/false)
                   : v.number(rule.low, rule.high, rule.or_zero);
}
[[maybe_unused]] double value_of(const NumberOrNone& rule, const Value& v) {
  return v.number(rule.kLeast, kHuge, /*or_zero=*/true);
}
double value_of(const Decay&, const Value& v) { return v.below_one(0, /*in_f32=*/true); }
int64_t value_of(const Integers& rule, const Value& v) { return v.integer(rule.low, rule.high); }
int32_t value_of(const Choice& rule, const Value& v) { return v.choice(rule.words); }
int32_t value_of(const Flag&, const Value& v) { return v.boolean(); }
int32_t value_of(const StorageDType&, const Value& v) { return v.choice(kStorageDtypes); }
int32_t value_of(const AnyDType&, const Value& v) { return v.choice(std::span(kDtypes)); }

/// Adds the keys that set fields of the C struct, from the table of settings.
void add_fields(std::vector<Key<P>>& keys) {
  visit_group_fields([&](const auto& row) {
    if constexpr (requires { row.member; }) {
      if (row.has(kNoKey)) return;
      keys.push_back({row.name, [row](P& out, const Value& v) {
                        const auto value = value_of(row.rule, v);
                        const auto use = row.has(kMuonOnly)    ? Setting::kMuon
                                         : row.has(kAdamWOnly) ? Setting::kAdamW
                                                               : Setting::kBoth;
                        out.fields.push_back({use, [row, value](G& group) {
                                                auto& field = row.c_member(group);
                                                using Field = std::decay_t<decltype(field)>;
                                                field = static_cast<Field>(value);
                                              }});
                      }});
    }
  });
}

// A row of a table: a key, the field that it sets, and the allowed values.

template <class T, class M>
Key<T> number(const char* name, M T::*field, double low, double high) {
  return {name, [=](T& out, const Value& v) { out.*field = v.number(low, high); }};
}

template <class T, class M>
Key<T> decay(const char* name, M T::*field) {
  return {name, [=](T& out, const Value& v) { out.*field = value_of(Decay{}, v); }};
}

template <class T, class M>
Key<T> integer(const char* name, M T::*field, int64_t low, int64_t high) {
  return {name, [=](T& out, const Value& v) { out.*field = v.integer(low, high); }};
}

/// Returns a key whose value is one of a set of names. The field is set to the name, or to the
/// corresponding C value.
template <class T, class M>
Key<T> choice(const char* name, M T::*field, std::span<const Word> words) {
  return {name, [=](T& out, const Value& v) { out.*field = v.choice(words); }};
}
template <class T, class M>
Key<T> choice(const char* name, M T::*field, std::initializer_list<const char*> known) {
  return {name, [field, list = std::vector<const char*>(known)](T& out, const Value& v) {
            out.*field = v.choice(list);
          }};
}

Key<P> layout_words(const char* name, std::string LayoutConfig::*field) {
  return {name, [=](P& out, const Value& v) { out.layout.*field = v.words(); }};
}

/// Returns a key whose value is an object or null. Null removes an inherited object.
template <class M>
Key<P> object(const char* name, std::optional<M> P::*field, M (*read)(const Value&)) {
  return {name, [=](P& out, const Value& v) {
            out.*field = v.null() ? std::nullopt : std::optional<M>(read(v));
          }};
}

void read_row_bounds(P& out, const Value& v) {
  if (v.json.is_string()) {
    out.layout.row_bounds = v.text();
    return;
  }
  v.require_list(2);
  out.layout.row_bounds.clear();
  for (const int64_t bound : v.integers(0, kMaxSize)) {
    out.layout.row_bounds += (out.layout.row_bounds.empty() ? "" : ",") + std::to_string(bound);
  }
}

void read_owner(P& out, const Value& v) {
  out.layout.owner =
      v.json.is_string() ? v.text() : std::to_string(v.integer(0, std::numeric_limits<int>::max()));
}

void read_owners(P& out, const Value& v) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  out.owner.reset();
  out.owners.clear();
  if (!v.json.is_array()) {
    out.owner = static_cast<int32_t>(v.integer(-1, kMost));
    return;
  }
  v.require_list(1);
  for (const int64_t rank : v.integers(-1, kMost)) out.owners.push_back(static_cast<int32_t>(rank));
}

void read_coefficients(P& out, const Value& v) {
  out.custom.clear();
  if (!v.json.is_array()) {
    out.coefficients = v.choice(std::span(kCoefficients).first<7>());
    return;
  }
  v.require_list(1);
  if (v.json.size() > 32)
    v.refuse("must have at most 32 triples, but has " + std::to_string(v.json.size()));
  for (size_t i = 0; i < v.json.size(); ++i) {
    const Value triple = v.at(i);
    triple.require_list(3);
    if (triple.json.size() != 3) triple.refuse("must be three numbers, but is " + triple.shown());
    const auto at = [&](size_t k) { return triple.at(k).number(-1e6, 1e6); };
    out.custom.push_back({at(0), at(1), at(2)});
  }
  out.coefficients = MUONRT_COEFFICIENTS_CUSTOM;
}

void read_betas(P& out, const Value& v) {
  v.require_list(2);
  if (v.json.size() != 2) v.refuse("must be two numbers, but is " + v.shown());
  const double first = value_of(Decay{}, v.at(0)), second = value_of(Decay{}, v.at(1));
  out.fields.push_back({Setting::kBoth, [=](G& group) {
                          group.beta1 = first;
                          group.beta2 = second;
                        }});
}

void require_keys(const Value& v, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (!v.json.contains(key)) v.refuse(std::string(key) + " is missing");
  }
}

MomentumSchedule read_schedule(const Value& v) {
  using M = MomentumSchedule;
  static const std::vector<Key<M>> keys = {
      decay("from", &M::from), integer("warmup_steps", &M::warmup_steps, 0, kMaxSize),
      integer("cooldown_steps", &M::cooldown_steps, 0, kMaxSize),
      integer("total_steps", &M::total_steps, 0, kMaxSize)};
  M out;
  read_object(out, v, keys);
  require_keys(v, {"from"});
  const int64_t ramps = out.warmup_steps + out.cooldown_steps;
  if (out.cooldown_steps > 0 && out.total_steps < ramps) {
    v.refuse("total_steps is " + std::to_string(out.total_steps) +
             ", but warmup_steps and cooldown_steps together need a number from " +
             std::to_string(ramps));
  }
  return out;
}

/// Reads an object or a list of learning rates. `total_steps` is checked later, together with the
/// rule.
LrSchedule read_lr_schedule(const Value& v) {
  using L = LrSchedule;
  L out;
  if (v.json.is_array()) {
    v.require_list(1);
    for (size_t i = 0; i < v.json.size(); ++i) out.rates.push_back(v.at(i).number(0, kHuge));
    return out;
  }
  static const std::vector<Key<L>> keys = {
      choice("kind", &L::kind, {"linear", "cosine", "wsd"}),
      integer("warmup_steps", &L::warmup_steps, 0, kMaxSize / 2),
      integer("cooldown_steps", &L::cooldown_steps, 1, kMaxSize / 2),
      integer("total_steps", &L::total_steps, 1, kMaxSize),
      number("min_factor", &L::min_factor, 0, 1)};
  read_object(out, v, keys);
  require_keys(v, {"kind"});
  const bool wsd = out.kind == "wsd";
  if (wsd) require_keys(v, {"cooldown_steps"});
  if (!wsd && out.cooldown_steps > 0) {
    v.refuse("cooldown_steps is " + std::to_string(out.cooldown_steps) + ", but kind is " +
             out.kind + ", which falls from the end of the warm-up; remove it, or use wsd");
  }
  return out;
}

BlocksConfig read_blocks(const Value& v) {
  using B = BlocksConfig;
  static const std::vector<Key<B>> keys = {
      {"grid",
       [](B& out, const Value& grid) {
         const auto sizes = grid.sizes(1, 1024);
         if (sizes.size() != 2)
           grid.refuse("must be two numbers, such as [2, 4] or \"2x4\", but is " + grid.shown());
         out.rows = sizes[0];
         out.cols = sizes[1];
       }},
      integer("period", &B::period, 1, 1000000000),
      number("lr_factor", &B::lr_factor, 0, kHuge)};
  B out;
  read_object(out, v, keys);
  require_keys(v, {"grid", "period"});
  return out;
}

NorMuonConfig read_normuon(const Value& v) {
  using N = NorMuonConfig;
  static const std::vector<Key<N>> keys = {choice("axis", &N::axis, {"rows", "columns", "longer"}),
                                           decay("beta2", &N::beta2)};
  N out;
  read_object(out, v, keys);
  return out;
}

QkClipConfig read_qk_clip(const Value& v) {
  using Q = QkClipConfig;
  static const std::vector<Key<Q>> keys = {
      choice("kind", &Q::kind, {"q", "k", "mla_q", "mla_kv", "qkv", "qkv_blocks"}),
      integer("layer", &Q::layer, 0, 1 << 30),
      integer("head_dim", &Q::head_dim, 1, 1 << 30),
      integer("nope", &Q::nope, 0, 1 << 30),
      integer("rope", &Q::rope, 0, 1 << 30),
      integer("v_dim", &Q::v_dim, 0, 1 << 30),
      integer("heads", &Q::heads, 1, 1 << 30),
      integer("kv_heads", &Q::kv_heads, 1, 1 << 30),
      {"select",
       [](Q& out, const Value& list) {
         out.select = list.integers(0, 1 << 30);
         out.selected = true;
       }},
      number("threshold", &Q::threshold, NumberOrNone::kLeast, kHuge),
      number("exponent", &Q::exponent, 0, 1)};
  Q out;
  read_object(out, v, keys);
  require_keys(v, {"heads"});
  if (out.kind.empty() && out.layer >= 0) {
    v.refuse("layer is " + std::to_string(out.layer) +
             ", but kind is missing; set kind, or remove layer, so that the names of the "
             "parameters determine both");
  }
  if (out.kind == "mla_q" || (out.kind.empty() && v.json.contains("rope"))) {
    require_keys(v, {"nope", "rope"});
  } else if (out.kind == "mla_kv" || (out.kind.empty() && v.json.contains("nope"))) {
    require_keys(v, {"nope", "v_dim"});
  } else {
    require_keys(v, {"head_dim"});
  }
  if (out.kv_heads == 0) out.kv_heads = out.heads;
  if (out.heads % out.kv_heads != 0) {
    v.refuse("heads is " + std::to_string(out.heads) + ", but must be a multiple of kv_heads, " +
             std::to_string(out.kv_heads));
  }
  for (const int64_t head : out.select) {
    if (head >= out.heads) {
      v.refuse("select names head " + std::to_string(head) + ", but heads is " +
               std::to_string(out.heads));
    }
  }
  return out;
}

}  // namespace

const std::vector<Key<ParamConfig>>& param_keys() {
  static const std::vector<Key<P>> keys = [] {
    std::vector<Key<P>> out = {
        choice("role", &P::role, {"muon", "adamw", "frozen"}),
        choice("view", &P::view, {"none", "stack", "flatten"}),
        {"transposed", [](P& o, const Value& v) { o.transposed = v.boolean(); }},
        integer("batch_dims", &P::batch_dims, 1, MUONRT_MAX_DIMS - 2),
        integer("row_dims", &P::row_dims, 1, MUONRT_MAX_DIMS - 1),
        layout_words("placements", &LayoutConfig::placements),
        layout_words("grad_placements", &LayoutConfig::grad_placements),
        {"reading",
         [](P& o, const Value& v) {
           o.layout.reading = v.choice({"literal", "ordered"});
         }},
        layout_words("cuts", &LayoutConfig::cuts),
        {"row_bounds", read_row_bounds},
        {"owner", read_owner},
        layout_words("flat", &LayoutConfig::flat),
        {"owners", read_owners},
        integer("priority", &P::priority, INT32_MIN, INT32_MAX),
        {"parts", [](P& o, const Value& v) { o.parts = v.null() ? PartsConfig{} : read_parts(v); }},
        number("lr", &P::lr, 0, kHuge),
        number("lr_factor", &P::lr_factor, 0, kHuge),
        object("lr_schedule", &P::lr_schedule, read_lr_schedule),
        object("momentum_schedule", &P::momentum_schedule, read_schedule),
        {"coefficients", read_coefficients},
        integer("steps", &P::steps, 0, kMaxSteps),
        {"gram_restarts",
         [](P& o, const Value& v) { o.gram_restarts = v.integers(0, kMaxSteps - 1); }},
        object("blocks", &P::blocks, read_blocks),
        choice("transport_dtype", &P::transport_dtype, kStorageDtypes),
        object("normuon", &P::normuon, read_normuon),
        choice("master_kind", &P::master_kind, std::span(kMasterKinds)),
        {"betas", read_betas},
        object("qk_clip", &P::qk_clip, read_qk_clip),
    };
    add_fields(out);
    return out;
  }();
  return keys;
}

}  // namespace muonrt::tool
