#include "opt_json/bind.hpp"

#include <algorithm>
#include <stdexcept>

namespace muonrt::tool {

namespace {

struct Word {
  const char* text;
  int32_t value;
};

constexpr Word kMomentumKinds[] = {{"ema", MUONRT_MOMENTUM_EMA},
                                   {"heavy_ball", MUONRT_MOMENTUM_HEAVY_BALL}};
constexpr Word kFamilies[] = {{"polar_express", MUONRT_COEFFICIENTS_POLAR_EXPRESS},
                              {"keller_jordan", MUONRT_COEFFICIENTS_KELLER_JORDAN},
                              {"you", MUONRT_COEFFICIENTS_YOU_JIACHENG},
                              {"cans", MUONRT_COEFFICIENTS_CANS},
                              {"deepseek_v4", MUONRT_COEFFICIENTS_DEEPSEEK_V4},
                              {"cubic", MUONRT_COEFFICIENTS_CUBIC},
                              {"classical", MUONRT_COEFFICIENTS_CLASSICAL},
                              {"custom", MUONRT_COEFFICIENTS_CUSTOM}};
constexpr Word kSafetyModes[] = {
    {"inner", MUONRT_SAFETY_INNER}, {"all", MUONRT_SAFETY_ALL}, {"none", MUONRT_SAFETY_NONE}};
constexpr Word kNormalizations[] = {{"prescaled", MUONRT_NORMALIZE_PRESCALED},
                                    {"add_eps", MUONRT_NORMALIZE_ADD_EPS},
                                    {"max_eps", MUONRT_NORMALIZE_MAX_EPS}};
constexpr Word kRowScalings[] = {{"none", MUONRT_ROW_SCALING_NONE},
                                 {"aol", MUONRT_ROW_SCALING_AOL}};
constexpr Word kScales[] = {{"match_rms", MUONRT_SCALE_MATCH_RMS},
                            {"original", MUONRT_SCALE_ORIGINAL},
                            {"ratio", MUONRT_SCALE_RATIO},
                            {"max_dim", MUONRT_SCALE_MAX_DIM},
                            {"none", MUONRT_SCALE_NONE}};
constexpr Word kForms[] = {
    {"auto", MUONRT_FORM_AUTO}, {"standard", MUONRT_FORM_STANDARD}, {"gram", MUONRT_FORM_GRAM}};
constexpr Word kDtypes[] = {
    {"f32", MUONRT_DTYPE_F32}, {"bf16", MUONRT_DTYPE_BF16}, {"f16", MUONRT_DTYPE_F16}};
constexpr Word kCommits[] = {{"atomic", MUONRT_COMMIT_ATOMIC}, {"eager", MUONRT_COMMIT_EAGER}};
constexpr Word kMasters[] = {{"plain", MUONRT_MASTER_NONE},
                             {"master", MUONRT_MASTER_OWNED},
                             {"remainder", MUONRT_MASTER_REMAINDER},
                             {"stochastic", MUONRT_MASTER_STOCHASTIC}};
constexpr Word kDecays[] = {{"decoupled", MUONRT_WEIGHT_DECAY_DECOUPLED},
                            {"independent", MUONRT_WEIGHT_DECAY_INDEPENDENT},
                            {"lr_squared", MUONRT_WEIGHT_DECAY_LR_SQUARED},
                            {"cautious", MUONRT_WEIGHT_DECAY_CAUTIOUS}};
constexpr Word kReplicas[] = {
    {"once", MUONRT_REPLICAS_ONCE}, {"each", MUONRT_REPLICAS_EACH}, {"auto", MUONRT_REPLICAS_AUTO}};
constexpr Word kQkKinds[] = {{"q", MUONRT_QK_CLIP_Q},
                             {"k", MUONRT_QK_CLIP_K},
                             {"mla_q", MUONRT_QK_CLIP_MLA_Q},
                             {"mla_kv", MUONRT_QK_CLIP_MLA_KV},
                             {"qkv", MUONRT_QK_CLIP_QKV}};
constexpr Word kAdamForms[] = {{"torch", MUONRT_ADAM_TORCH}, {"folded", MUONRT_ADAM_FOLDED}};

[[noreturn]] void refuse_value(const std::string& where, const char* key,
                               const std::string& value) {
  throw std::runtime_error(where + "." + key + ": " + value +
                           " is not supported by this muonrt; leave it out or choose another");
}

template <size_t n>
void take_word(int32_t& out, const std::optional<std::string>& value, const Word (&words)[n],
               const std::string& where, const char* key) {
  if (!value) return;
  for (const Word& word : words) {
    if (*value == word.text) {
      out = word.value;
      return;
    }
  }
  refuse_value(where, key, *value);
}

template <class To, class From>
void take(To& out, const std::optional<From>& value) {
  if (value) out = static_cast<To>(*value);
}

}  // namespace

BoundRule::BoundRule(const std::string& file, const ParamConfig& config)
    : where_(file + ": " + config.rule), name_(config.rule) {
  const bool adamw = config.role == "adamw";
  muonrt_group_init(&group_, adamw ? MUONRT_ROLE_ADAMW : MUONRT_ROLE_MUON);
  take_qk_clip(config);
  take_rates(config);
  if (!adamw) take_list(config);
}

void BoundRule::refuse(const char* key, const std::string& value) const {
  refuse_value(where_, key, value);
}

void BoundRule::take_qk_clip(const ParamConfig& c) {
  if (!c.qk_clip) return;
  const QkClipConfig& from = *c.qk_clip;
  if (c.role == "adamw") refuse("qk_clip", from.kind + " of an AdamW parameter");
  qk_clip_ = std::make_unique<muonrt_qk_clip_t>();
  muonrt_qk_clip_t& q = *qk_clip_;
  muonrt_qk_clip_init(&q);
  take_word(q.kind, std::optional(from.kind), kQkKinds, where_, "qk_clip.kind");
  q.layer = static_cast<int32_t>(from.layer);
  q.heads = static_cast<int32_t>(from.heads);
  q.kv_heads = static_cast<int32_t>(from.kv_heads);
  q.head_dim = static_cast<int32_t>(from.head_dim);
  q.nope = static_cast<int32_t>(from.nope);
  q.rope = static_cast<int32_t>(from.rope);
  q.v_dim = static_cast<int32_t>(from.v_dim);
  select_.assign(from.select.begin(), from.select.end());
  if (from.selected) {
    static const int32_t kNone = 0;
    q.select = select_.empty() ? &kNone : select_.data();
    q.n_select = static_cast<int32_t>(select_.size());
  }
  q.threshold = from.threshold;
  q.exponent = from.exponent;
}

void BoundRule::take_rates(const ParamConfig& c) {
  // The step's rate is 1; a rule has its own.
  group_.lr_factor = c.lr.value() * c.lr_factor.value_or(1.0);
  take(group_.weight_decay, c.weight_decay);
  take_word(group_.weight_decay_kind, c.weight_decay_kind, kDecays, where_, "weight_decay_kind");
  take(group_.momentum, c.momentum);
  take_word(group_.momentum_kind, c.momentum_kind, kMomentumKinds, where_, "momentum_kind");
  take(group_.nesterov, c.nesterov);
  if (c.betas) {
    group_.beta1 = c.betas->first;
    group_.beta2 = c.betas->second;
  }
  take(group_.eps, c.adam_eps);
  take_word(group_.adam_form, c.adam_form, kAdamForms, where_, "adam_form");
  if (c.role == "adamw") {
    take(group_.update_every, c.update_every);
  } else {
    take_word(group_.momentum_dtype, c.momentum_dtype, kDtypes, where_, "momentum_dtype");
  }
  if (c.role != "adamw") schedule_ = c.momentum_schedule;
}

void BoundRule::take_list(const ParamConfig& c) {
  take_word(group_.row_scaling, c.row_scaling, kRowScalings, where_, "row_scaling");
  // Row scaling has a list of its own; every list but the default has a number of steps of its own.
  if (group_.row_scaling == MUONRT_ROW_SCALING_AOL) group_.coefficients = MUONRT_COEFFICIENTS_AOL;
  take_word(group_.coefficients, c.coefficients, kFamilies, where_, "coefficients");
  if (group_.coefficients != MUONRT_COEFFICIENTS_POLAR_EXPRESS) group_.steps = 0;
  take(group_.steps, c.steps);
  for (const Triple& t : c.custom) custom_.insert(custom_.end(), {t.a, t.b, t.c});
  if (!custom_.empty()) {
    if (c.steps.value_or(0) != 0 && *c.steps != std::ssize(c.custom)) {
      refuse("steps", std::to_string(*c.steps) + " with a list of " +
                          std::to_string(c.custom.size()) + " triples");
    }
    group_.steps = static_cast<int32_t>(c.custom.size());
  }
  take(group_.lower_bound, c.lower_bound);
  take(group_.cushion, c.cushion);
  take(group_.safety, c.safety);
  take_word(group_.safety_mode, c.safety_mode, kSafetyModes, where_, "safety_mode");
  take_word(group_.normalize, c.normalize, kNormalizations, where_, "normalize");
  take(group_.normalize_eps, c.eps);
  take_word(group_.form, c.method, kForms, where_, "method");
  if (c.restarts) {
    restarts_.assign(c.restarts->begin(), c.restarts->end());
    // An empty list is a list too: no restart at all.
    restarts_given_ = true;
  }
  take_word(group_.iteration_dtype, c.iteration_dtype, kDtypes, where_, "iteration_dtype");
  if (c.blocks) {
    group_.block_period = static_cast<int32_t>(c.blocks->period);
    group_.block_rows = static_cast<int32_t>(c.blocks->rows);
    group_.block_cols = static_cast<int32_t>(c.blocks->cols);
    group_.block_lr_factor = c.blocks->lr_factor;
  }
  if (c.normuon) {
    group_.normuon = bound_axis(c.normuon->axis);
    group_.normuon_beta2 = c.normuon->beta2;
  }
  take_word(group_.scale_rule, c.scale, kScales, where_, "scale");
  take(group_.scale_factor, c.scale_factor);
}

muonrt_group_t BoundRule::group(int64_t step) const {
  muonrt_group_t out = group_;
  out.name = name_.c_str();
  out.custom = custom_.empty() ? nullptr : custom_.data();
  if (restarts_given_) {
    static const int32_t kNone = 0;
    out.restarts = restarts_.empty() ? &kNone : restarts_.data();
    out.n_restarts = static_cast<int32_t>(restarts_.size());
  }
  if (schedule_) out.momentum = scheduled_momentum(*schedule_, group_.momentum, step);
  return out;
}

double scheduled_momentum(const MomentumSchedule& s, double momentum, int64_t step) {
  if (step < s.warmup_steps) {
    const double part = static_cast<double>(step) / static_cast<double>(s.warmup_steps);
    return s.from + part * (momentum - s.from);
  }
  const int64_t into = step - (s.total_steps - s.cooldown_steps);
  if (s.cooldown_steps == 0 || into <= 0) return momentum;
  const double part =
      std::min(1.0, static_cast<double>(into) / static_cast<double>(s.cooldown_steps));
  return momentum - part * (momentum - s.from);
}

muonrt_optimizer_options_t bound_options(const StepConfig& config,
                                         const std::vector<size_t>& used) {
  muonrt_optimizer_options_t out;
  muonrt_optimizer_options_init(&out);
  // The messages are of the whole optimizer: every matrix must ask for the same.
  const ParamConfig* first = nullptr;
  for (const size_t index : used) {
    const ParamConfig& c = config.rules[index].config;
    if (c.role == "adamw") continue;
    if (first && first->transport_dtype != c.transport_dtype) {
      throw std::runtime_error(config.file + ": " + c.rule +
                               ".transport_dtype: differs from that of " + first->rule +
                               " (all matrices share it); set it in defaults");
    }
    first = &c;
    take_word(out.transport_dtype, c.transport_dtype, kDtypes, config.file + ": " + c.rule,
              "transport_dtype");
  }
  take_word(out.commit, config.commit, kCommits, config.file + ": top level", "commit");
  take(out.window, config.window);
  take(out.chunk_bytes, config.chunk_bytes);
  out.seed = static_cast<int64_t>(config.seed);
  take(out.clip_norm, config.clip_norm);
  take_word(out.replicas, config.replicas, kReplicas, config.file + ": top level", "replicas");
  out.health_every = config.health_every;
  return out;
}

int32_t bound_axis(const std::string& axis) {
  if (axis == "columns") return MUONRT_NORMUON_COLUMNS;
  return axis == "longer" ? MUONRT_NORMUON_LONGER : MUONRT_NORMUON_ROWS;
}

int32_t bound_master(const std::string& file, const ParamConfig& config) {
  int32_t out = MUONRT_MASTER_AUTO;
  take_word(out, config.precision, kMasters, file + ": " + config.rule, "precision");
  return out;
}

}  // namespace muonrt::tool
