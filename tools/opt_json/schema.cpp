#include "opt_json/schema.hpp"

#include <limits>

namespace muonrt::tool {

namespace {

using P = ParamConfig;

constexpr double kLeast = 1e-30;

// Rows of the tables: which field takes the value, and which values there are.

template <class T, class M>
Key<T> number(const char* name, M T::*field, double low, double high) {
  return {name, [=](T& out, const Value& v) { out.*field = v.number(low, high); }};
}

/// What decays by this factor at each step; kept in f32.
template <class T, class M>
Key<T> decay(const char* name, M T::*field) {
  return {name, [=](T& out, const Value& v) { out.*field = v.below_one(0, /*in_f32=*/true); }};
}

template <class T, class M>
Key<T> below_one(const char* name, M T::*field, double low) {
  return {name, [=](T& out, const Value& v) { out.*field = v.below_one(low, /*in_f32=*/false); }};
}

template <class T, class M>
Key<T> integer(const char* name, M T::*field, int64_t low, int64_t high) {
  return {name, [=](T& out, const Value& v) { out.*field = v.integer(low, high); }};
}

template <class T, class M>
Key<T> choice(const char* name, M T::*field, std::initializer_list<const char*> known) {
  return {name, [field, list = std::vector<const char*>(known)](T& out, const Value& v) {
            std::string words;
            for (const char* word : list) {
              if (v.json.is_string() && v.json.get<std::string>() == word) {
                out.*field = std::string(word);
                return;
              }
              words += (words.empty() ? "" : ", ") + std::string(word);
            }
            v.refuse("unknown value " + v.shown() + " (known: " + words + ")");
          }};
}

Key<P> boolean(const char* name, std::optional<bool> P::*field) {
  return {name, [=](P& out, const Value& v) { out.*field = v.boolean(); }};
}

Key<P> layout_words(const char* name, std::string LayoutConfig::*field) {
  return {name, [=](P& out, const Value& v) { out.layout.*field = v.words(); }};
}

/// An object, or null for none.
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
  for (const int64_t bound : v.integers(0, kMostSize)) {
    out.layout.row_bounds += (out.layout.row_bounds.empty() ? "" : ",") + std::to_string(bound);
  }
}

void read_owner(P& out, const Value& v) {
  out.layout.owner =
      v.json.is_string() ? v.text() : std::to_string(v.integer(0, std::numeric_limits<int>::max()));
}

void read_coefficients(P& out, const Value& v) {
  out.custom.clear();
  if (!v.json.is_array()) {
    out.coefficients = v.choice(
        {"keller_jordan", "you", "polar_express", "cans", "deepseek_v4", "cubic", "classical"});
    return;
  }
  v.require_list(1);
  if (v.json.size() > 32) v.refuse("more than 32 triples");
  for (size_t i = 0; i < v.json.size(); ++i) {
    const Value triple = v.at(i);
    triple.require_list(3);
    if (triple.json.size() != 3) triple.refuse(triple.shown() + " (three numbers belong there)");
    const auto at = [&](size_t k) { return triple.at(k).number(-1e6, 1e6); };
    out.custom.push_back({at(0), at(1), at(2)});
  }
  out.coefficients = "custom";
}

void read_safety(P& out, const Value& v) {
  const double value = v.number(0, 2);
  if (value > 0 && value < 1) {
    v.refuse(v.shown() + " (a number from 1 to 2, or 0 for the list's own, belongs there)");
  }
  out.safety = value;
}

void read_betas(P& out, const Value& v) {
  v.require_list(2);
  if (v.json.size() != 2) v.refuse(v.shown() + " (two numbers belong there)");
  out.betas = {v.at(0).below_one(0, true), v.at(1).below_one(0, true)};
}

MomentumSchedule read_schedule(const Value& v) {
  using M = MomentumSchedule;
  static const std::vector<Key<M>> keys = {
      decay("from", &M::from), integer("warmup_steps", &M::warmup_steps, 0, kMostSize),
      integer("cooldown_steps", &M::cooldown_steps, 0, kMostSize),
      integer("total_steps", &M::total_steps, 0, kMostSize)};
  M out;
  read_object(out, v, keys);
  if (!v.json.contains("from")) v.refuse("from is missing");
  const int64_t ramps = out.warmup_steps + out.cooldown_steps;
  if (out.cooldown_steps > 0 && out.total_steps < ramps) {
    v.refuse("total_steps is " + std::to_string(out.total_steps) +
             " (warmup_steps are the first of them, cooldown_steps the last); give a number from " +
             std::to_string(ramps));
  }
  return out;
}

BlocksConfig read_blocks(const Value& v) {
  using B = BlocksConfig;
  static const std::vector<Key<B>> keys = {
      {"grid",
       [](B& out, const Value& grid) {
         const auto sizes = grid.integers(1, 1024);
         if (sizes.size() != 2) grid.refuse(grid.shown() + " (rows and columns belong there)");
         out.rows = sizes[0];
         out.cols = sizes[1];
       }},
      integer("period", &B::period, 1, 1000000000),
      number("lr_factor", &B::lr_factor, 0, kHuge)};
  B out;
  read_object(out, v, keys);
  if (!v.json.contains("grid")) v.refuse("grid is missing");
  if (!v.json.contains("period")) v.refuse("period is missing");
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

void require_keys(const Value& v, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (!v.json.contains(key)) v.refuse(std::string(key) + " is missing");
  }
}

QkClipConfig read_qk_clip(const Value& v) {
  using Q = QkClipConfig;
  static const std::vector<Key<Q>> keys = {
      choice("kind", &Q::kind, {"q", "k", "mla_q", "mla_kv", "qkv"}),
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
      number("threshold", &Q::threshold, kLeast, kHuge),
      number("exponent", &Q::exponent, 0, 1)};
  Q out;
  read_object(out, v, keys);
  require_keys(v, {"kind", "layer", "heads"});
  if (out.kind == "mla_q") {
    require_keys(v, {"nope", "rope"});
  } else if (out.kind == "mla_kv") {
    require_keys(v, {"nope", "v_dim"});
  } else {
    require_keys(v, {"head_dim"});
  }
  if (out.kv_heads == 0) out.kv_heads = out.heads;
  if (out.heads % out.kv_heads != 0) {
    v.refuse("heads is " + std::to_string(out.heads) + ", kv_heads " +
             std::to_string(out.kv_heads) + " (query heads share KV heads evenly)");
  }
  for (const int64_t head : out.select) {
    if (head >= out.heads) {
      v.refuse("select names head " + std::to_string(head) + " of " + std::to_string(out.heads));
    }
  }
  return out;
}

}  // namespace

const std::vector<Key<ParamConfig>>& param_keys() {
  static const std::vector<Key<P>> keys = {
      choice("role", &P::role, {"matrix", "stack", "adamw", "frozen"}),
      layout_words("placements", &LayoutConfig::placements),
      layout_words("grad_placements", &LayoutConfig::grad_placements),
      {"reading",
       [](P& out, const Value& v) {
         out.layout.reading = v.choice({"literal", "ordered"});
       }},
      layout_words("cuts", &LayoutConfig::cuts),
      {"row_bounds", read_row_bounds},
      {"owner", read_owner},
      layout_words("flat", &LayoutConfig::flat),
      {"parts",
       [](P& out, const Value& v) { out.parts = v.null() ? PartsConfig{} : read_parts(v); }},
      number("lr", &P::lr, 0, kHuge),
      number("lr_factor", &P::lr_factor, 0, kHuge),
      number("weight_decay", &P::weight_decay, 0, kHuge),
      choice("weight_decay_kind", &P::weight_decay_kind,
             {"decoupled", "independent", "lr_squared", "cautious"}),
      decay("momentum", &P::momentum),
      choice("momentum_kind", &P::momentum_kind, {"ema", "heavy_ball"}),
      object("momentum_schedule", &P::momentum_schedule, read_schedule),
      boolean("nesterov", &P::nesterov),
      {"coefficients", read_coefficients},
      integer("steps", &P::steps, 0, 32),
      below_one("lower_bound", &P::lower_bound, 1e-12),
      below_one("cushion", &P::cushion, 0),
      {"safety", read_safety},
      choice("safety_mode", &P::safety_mode, {"inner", "all", "none"}),
      choice("method", &P::method, {"standard", "gram", "auto"}),
      {"restarts", [](P& out, const Value& v) { out.restarts = v.integers(0, 31); }},
      choice("normalize", &P::normalize, {"prescaled", "add_eps", "max_eps"}),
      number("eps", &P::eps, 0, kHuge),
      choice("row_scaling", &P::row_scaling, {"none", "aol"}),
      object("blocks", &P::blocks, read_blocks),
      choice("iteration_dtype", &P::iteration_dtype, {"f32", "bf16", "f16"}),
      choice("transport_dtype", &P::transport_dtype, {"f32", "bf16"}),
      choice("scale", &P::scale, {"original", "match_rms", "ratio", "max_dim", "none"}),
      number("scale_factor", &P::scale_factor, 0, kHuge),
      object("normuon", &P::normuon, read_normuon),
      choice("precision", &P::precision, {"plain", "master", "remainder", "stochastic"}),
      choice("momentum_dtype", &P::momentum_dtype, {"f32", "bf16"}),
      {"betas", read_betas},
      number("adam_eps", &P::adam_eps, 0, kHuge),
      choice("adam_form", &P::adam_form, {"torch", "folded"}),
      integer("update_every", &P::update_every, 1, 1 << 30),
      object("qk_clip", &P::qk_clip, read_qk_clip),
  };
  return keys;
}

}  // namespace muonrt::tool
