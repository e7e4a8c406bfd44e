#include "opt_json/bind.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <stdexcept>

#include "opt_json/strict_json.hpp"
#include "opt_json/value.hpp"

namespace muonrt::tool {

namespace {

constexpr Word kQkKinds[] = {{"q", MUONRT_QK_QUERY},         {"k", MUONRT_QK_KEY},
                             {"mla_q", MUONRT_QK_MLA_QUERY}, {"mla_kv", MUONRT_QK_MLA_KEY_VALUE},
                             {"qkv", MUONRT_QK_QKV},         {"qkv_blocks", MUONRT_QK_QKV_BLOCKS}};
template <class To, class From>
void take(To& out, const std::optional<From>& value) {
  if (value) out = static_cast<To>(*value);
}

}  // namespace

BoundRule::BoundRule(const std::string& file, const ParamConfig& config)
    : where_(file + ": " + config.rule), name_(config.rule) {
  const bool adamw = config.role == "adamw";
  if (adamw) {
    muonrt_group_init_adamw(&group_);
  } else {
    muonrt_group_init_muon(&group_);
  }
  for (const Setting& setting : config.fields) {
    if (setting.use != (adamw ? Setting::kMuon : Setting::kAdamW)) setting.set(group_);
  }
  take_qk_clip(config);
  take_rates(config);
  take(owner_, config.owner);
  owners_ = config.owners;
  take(priority_, config.priority);
  if (!adamw) take_list(config);
}

void BoundRule::set_exchange(muonrt_param_t& param) const {
  param.priority = priority_;
  param.owner = owner_;
  param.owners = owners_.empty() ? nullptr : owners_.data();
  param.n_owners = std::ssize(owners_);
}

void BoundRule::reject(const char* key, const std::string& value) const {
  throw std::runtime_error(where_ + "." + key + ": " + value +
                           " is not supported; omit the key or choose another value");
}

void BoundRule::take_qk_clip(const ParamConfig& c) {
  if (!c.qk_clip) return;
  const QkClipConfig& from = *c.qk_clip;
  if (c.role == "adamw") reject("qk_clip", "QK-clip of an AdamW parameter");
  qk_clip_ = std::make_unique<muonrt_qk_clip_t>();
  muonrt_qk_clip_t& q = *qk_clip_;
  muonrt_qk_clip_init(&q);
  q.kind = MUONRT_QK_FROM_NAME;
  for (const Word& kind : kQkKinds) {
    if (from.kind == kind.text) q.kind = kind.value;
  }
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
  // The learning rate of the step is 1, so lr_factor of the group is the learning rate of the rule.
  group_.lr_factor = (c.has_rates() ? 1.0 : c.lr.value()) * c.lr_factor.value_or(1.0);
  lr_schedule_ = c.lr_schedule;
  if (c.role != "adamw") schedule_ = c.momentum_schedule;
}

void BoundRule::take_list(const ParamConfig& c) {
  // AOL row scaling has its own coefficients. If the list is not the default one, it determines the
  // number of steps.
  if (group_.row_scaling == MUONRT_ROW_SCALING_AOL) group_.coefficients = MUONRT_COEFFICIENTS_AOL;
  take(group_.coefficients, c.coefficients);
  if (group_.coefficients != MUONRT_COEFFICIENTS_POLAR_EXPRESS) group_.steps = 0;
  take(group_.steps, c.steps);
  for (const Triple& t : c.custom) custom_.insert(custom_.end(), {t.a, t.b, t.c});
  if (!custom_.empty()) {
    if (c.steps.value_or(0) != 0 && *c.steps != std::ssize(c.custom)) {
      reject("steps", std::to_string(*c.steps) + " with a list of " +
                          std::to_string(c.custom.size()) + " triples");
    }
    group_.steps = static_cast<int32_t>(c.custom.size());
  }
  if (c.gram_restarts) {
    gram_restarts_.assign(c.gram_restarts->begin(), c.gram_restarts->end());
    // An empty list means no restarts, and a missing list means the default.
    has_gram_restarts_ = true;
  }
  if (c.blocks) {
    group_.block_period = static_cast<int32_t>(c.blocks->period);
    group_.block_rows = static_cast<int32_t>(c.blocks->rows);
    group_.block_cols = static_cast<int32_t>(c.blocks->cols);
    group_.block_lr_factor = c.blocks->lr_factor;
  }
  if (c.normuon) {
    group_.normuon_axis = bound_axis(c.normuon->axis);
    group_.normuon_beta2 = c.normuon->beta2;
  }
}

muonrt_group_t BoundRule::group(int64_t step) const {
  muonrt_group_t out = group_;
  out.name = name_.c_str();
  out.custom = custom_.empty() ? nullptr : custom_.data();
  if (has_gram_restarts_) {
    static const int32_t kNone = 0;
    out.gram_restarts = gram_restarts_.empty() ? &kNone : gram_restarts_.data();
    out.n_gram_restarts = static_cast<int32_t>(gram_restarts_.size());
  }
  if (lr_schedule_) out.lr_factor *= scheduled_lr(*lr_schedule_, step);
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

double scheduled_lr(const LrSchedule& s, int64_t step) {
  if (s.kind.empty()) return s.rates[std::min(static_cast<size_t>(step), s.rates.size() - 1)];
  const auto ratio = [](int64_t a, int64_t b) {
    return static_cast<double>(a) / static_cast<double>(b);
  };
  if (step < s.warmup_steps) return ratio(step + 1, s.warmup_steps);
  const int64_t decay = s.kind == "wsd" ? s.cooldown_steps : s.total_steps - s.warmup_steps;
  const int64_t into = step - (s.total_steps - decay);
  if (into <= 0) return 1.0;
  const double part = into < decay ? ratio(into, decay) : 1.0;
  const double left =
      s.kind == "cosine" ? (1.0 + std::cos(std::numbers::pi * part)) / 2 : 1.0 - part;
  return s.min_factor + (1.0 - s.min_factor) * left;
}

int64_t saved_steps(const std::string& folder) {
  muonrt_checkpoint_t* checkpoint = nullptr;
  muonrt_checkpoint_info_t info;
  muonrt_checkpoint_info_init(&info);
  if (muonrt_checkpoint_open(&checkpoint, folder.c_str(), nullptr) != MUONRT_OK) return 0;
  const bool known = muonrt_checkpoint_get_info(&info, checkpoint) == MUONRT_OK;
  muonrt_checkpoint_destroy(checkpoint);
  return known ? info.step : 0;
}

OptimizerOptions bound_options(const StepConfig& config, const std::vector<size_t>& used) {
  OptimizerOptions out;
  // transport_dtype applies to the whole optimizer, although opt.json sets it in the rules.
  const ParamConfig* first = nullptr;
  for (const size_t index : used) {
    const ParamConfig& c = config.rules[index].config;
    if (c.role == "adamw") continue;
    if (first && first->transport_dtype != c.transport_dtype) {
      throw std::runtime_error(config.file + ": " + c.rule +
                               ".transport_dtype: differs from that of " + first->rule +
                               ", but all parameters of Muon share it; set it in defaults");
    }
    first = &c;
    take(out.tuning.transport_dtype, c.transport_dtype);
  }
  take(out.tuning.commit, config.commit);
  take(out.tuning.window, config.window);
  take(out.tuning.chunk_bytes, config.chunk_bytes);
  out.has_overlap = config.async_parallelism || config.prefetch_count;
  out.overlap.prefetch_count = out.tuning.window - 1;
  take(out.overlap.prefetch_count, config.prefetch_count);
  take(out.overlap.async_parallelism, config.async_parallelism);
  take(out.tuning.replica_mode, config.replica_mode);
  take(out.tuning.omit_inactive, config.omit_inactive);
  out.general.seed = static_cast<int64_t>(config.seed);
  take(out.general.clip_norm, config.clip_norm);
  take(out.debug.replica_check, config.replica_check);
  out.debug.health_every = config.health_every;
  return out;
}

std::string large_update_text(const muonrt_step_report_t& r, const std::string& name,
                              const char* setting, double rate) {
  if (r.large_update_param < 0) return "";
  // Round the suggested learning rate down, so that the change is at most 5%.
  constexpr double kMost = 0.05;
  const double most = rate * kMost / r.large_update_ratio;
  const double unit = std::pow(10.0, std::floor(std::log10(most)) - 1);
  char text[120];
  std::snprintf(text, sizeof text,
                ": the first step moved it by %.3g%% of its RMS, which is above 5%%; try %s %.2g "
                "instead of %g",
                r.large_update_ratio * 100, setting, std::floor(most / unit) * unit, rate);
  return "param " + shown(name) + text;
}

int32_t bound_axis(const std::string& axis) {
  if (axis == "columns") return MUONRT_NORMUON_COLUMNS;
  return axis == "longer" ? MUONRT_NORMUON_LONGER : MUONRT_NORMUON_ROWS;
}

}  // namespace muonrt::tool
