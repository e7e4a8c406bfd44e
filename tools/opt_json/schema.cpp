#include "opt_json/schema.hpp"

#include <limits>

namespace muonrt::tool {

namespace {

using P = ParamConfig;

using G = muonrt_group_t;

constexpr double kLeast = 1e-30;

// The words of enums, and what the C ABI calls them.

constexpr Word kMomentumKinds[] = {{"ema", MUONRT_MOMENTUM_EMA},
                                   {"heavy_ball", MUONRT_MOMENTUM_HEAVY_BALL},
                                   {"ema_corrected", MUONRT_MOMENTUM_EMA_CORRECTED}};
constexpr Word kFamilies[] = {
    {"keller_jordan", MUONRT_COEFFICIENTS_KELLER_JORDAN}, {"you", MUONRT_COEFFICIENTS_YOU_JIACHENG},
    {"polar_express", MUONRT_COEFFICIENTS_POLAR_EXPRESS}, {"cans", MUONRT_COEFFICIENTS_CANS},
    {"deepseek_v4", MUONRT_COEFFICIENTS_DEEPSEEK_V4},     {"cubic", MUONRT_COEFFICIENTS_CUBIC},
    {"classical", MUONRT_COEFFICIENTS_CLASSICAL}};
constexpr Word kSafetyModes[] = {
    {"inner", MUONRT_SAFETY_INNER}, {"all", MUONRT_SAFETY_ALL}, {"none", MUONRT_SAFETY_NONE}};
constexpr Word kNormalizations[] = {{"prescaled", MUONRT_NORMALIZE_PRESCALED},
                                    {"add_eps", MUONRT_NORMALIZE_ADD_EPS},
                                    {"max_eps", MUONRT_NORMALIZE_MAX_EPS}};
constexpr Word kRowScalings[] = {{"none", MUONRT_ROW_SCALING_NONE},
                                 {"aol", MUONRT_ROW_SCALING_AOL}};
constexpr Word kScales[] = {{"original", MUONRT_SCALE_ORIGINAL},
                            {"match_rms", MUONRT_SCALE_MATCH_RMS},
                            {"ratio", MUONRT_SCALE_RATIO},
                            {"max_dim", MUONRT_SCALE_MAX_DIM},
                            {"none", MUONRT_SCALE_NONE}};
constexpr Word kForms[] = {
    {"standard", MUONRT_FORM_STANDARD}, {"gram", MUONRT_FORM_GRAM}, {"auto", MUONRT_FORM_AUTO}};
constexpr Word kStorageDtypes[] = {{"f32", MUONRT_DTYPE_F32}, {"bf16", MUONRT_DTYPE_BF16}};
constexpr Word kDtypes[] = {
    {"f32", MUONRT_DTYPE_F32}, {"bf16", MUONRT_DTYPE_BF16}, {"f16", MUONRT_DTYPE_F16}};
constexpr Word kMasters[] = {{"plain", MUONRT_MASTER_NONE},
                             {"master", MUONRT_MASTER_OWNED},
                             {"remainder", MUONRT_MASTER_REMAINDER},
                             {"stochastic", MUONRT_MASTER_STOCHASTIC}};
constexpr Word kDecays[] = {{"decoupled", MUONRT_WEIGHT_DECAY_DECOUPLED},
                            {"independent", MUONRT_WEIGHT_DECAY_INDEPENDENT},
                            {"lr_squared", MUONRT_WEIGHT_DECAY_LR_SQUARED},
                            {"cautious", MUONRT_WEIGHT_DECAY_CAUTIOUS}};
constexpr Word kAdamForms[] = {{"torch", MUONRT_ADAM_TORCH},
                               {"folded", MUONRT_ADAM_FOLDED},
                               {"nesterov", MUONRT_ADAM_NESTEROV}};

// Readers of values.

double factor(const Value& v) { return v.number(0, kHuge); }
bool flag(const Value& v) { return v.boolean(); }
/// What decays by this factor at each step; kept in f32.
double decay_of(const Value& v) { return v.below_one(0, /*in_f32=*/true); }
auto below_one(double low) {
  return [=](const Value& v) { return v.below_one(low, /*in_f32=*/false); };
}
double safety(const Value& v) {
  const double value = v.number(0, 2);
  if (value > 0 && value < 1) {
    v.refuse(v.shown() + " (a number from 1 to 2, or 0 for the list's own, belongs there)");
  }
  return value;
}
template <size_t n>
auto one_of(const Word (&words)[n]) {
  return [&words](const Value& v) { return v.choice(std::span<const Word>(words)); };
}

// Rows of the tables: which field takes the value, and which values there are.

/// A setting that is one field of the C struct.
template <class M, class Read>
Key<P> plain(const char* name, M G::*field, Read read, Setting::Use use = Setting::kBoth) {
  return {name, [=](P& out, const Value& v) {
            const auto value = static_cast<M>(read(v));
            out.plain.push_back({use, [=](G& group) { group.*field = value; }});
          }};
}
constexpr auto kMuon = Setting::kMuon;

template <class T, class M>
Key<T> number(const char* name, M T::*field, double low, double high) {
  return {name, [=](T& out, const Value& v) { out.*field = v.number(low, high); }};
}

template <class T, class M>
Key<T> decay(const char* name, M T::*field) {
  return {name, [=](T& out, const Value& v) { out.*field = decay_of(v); }};
}

template <class T, class M>
Key<T> integer(const char* name, M T::*field, int64_t low, int64_t high) {
  return {name, [=](T& out, const Value& v) { out.*field = v.integer(low, high); }};
}

/// A word, as a text or by its value.
template <class T, class M, class Words>
Key<T> choice(const char* name, M T::*field, const Words& words) {
  return {name, [=, &words](T& out, const Value& v) {
            out.*field = v.choice(std::span<const Word>(words));
          }};
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
    out.coefficients = v.choice(std::span<const Word>(kFamilies));
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
  out.coefficients = MUONRT_COEFFICIENTS_CUSTOM;
}

void read_betas(P& out, const Value& v) {
  v.require_list(2);
  if (v.json.size() != 2) v.refuse(v.shown() + " (two numbers belong there)");
  const double first = decay_of(v.at(0)), second = decay_of(v.at(1));
  out.plain.push_back({Setting::kBoth, [=](G& group) {
                         group.beta1 = first;
                         group.beta2 = second;
                       }});
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
      {"transposed", [](P& out, const Value& v) { out.transposed = v.boolean(); }},
      integer("batch_dims", &P::batch_dims, 1, MUONRT_MAX_DIMS - 2),
      integer("row_dims", &P::row_dims, 1, MUONRT_MAX_DIMS - 1),
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
      plain("weight_decay", &G::weight_decay, factor),
      plain("weight_decay_kind", &G::weight_decay_kind, one_of(kDecays)),
      plain("momentum", &G::momentum, decay_of),
      choice("momentum_kind", &P::momentum_kind, kMomentumKinds),
      object("momentum_schedule", &P::momentum_schedule, read_schedule),
      plain("nesterov", &G::nesterov, flag),
      {"coefficients", read_coefficients},
      integer("steps", &P::steps, 0, 32),
      plain("lower_bound", &G::lower_bound, below_one(1e-12), kMuon),
      plain("cushion", &G::cushion, below_one(0), kMuon),
      plain("safety", &G::safety, safety, kMuon),
      plain("safety_mode", &G::safety_mode, one_of(kSafetyModes), kMuon),
      choice("method", &P::method, kForms),
      {"restarts", [](P& out, const Value& v) { out.restarts = v.integers(0, 31); }},
      plain("normalize", &G::normalize, one_of(kNormalizations), kMuon),
      plain("eps", &G::normalize_eps, factor, kMuon),
      choice("row_scaling", &P::row_scaling, kRowScalings),
      object("blocks", &P::blocks, read_blocks),
      plain("iteration_dtype", &G::iteration_dtype, one_of(kDtypes), kMuon),
      choice("transport_dtype", &P::transport_dtype, kStorageDtypes),
      plain("scale", &G::scale_rule, one_of(kScales), kMuon),
      plain("scale_factor", &G::scale_factor, factor, kMuon),
      object("normuon", &P::normuon, read_normuon),
      choice("precision", &P::precision, kMasters),
      choice("momentum_dtype", &P::momentum_dtype, kStorageDtypes),
      {"betas", read_betas},
      plain("adam_eps", &G::eps, factor),
      plain("adam_form", &G::adam_form, one_of(kAdamForms)),
      plain(
          "update_every", &G::update_every, [](const Value& v) { return v.integer(1, 1 << 30); },
          Setting::kAdamW),
      object("qk_clip", &P::qk_clip, read_qk_clip),
  };
  return keys;
}

}  // namespace muonrt::tool
