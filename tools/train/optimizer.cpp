#include "train/optimizer.hpp"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "opt_json/optimizers.hpp"
#include "opt_json/strict_json.hpp"

namespace muonrt::train {

namespace {

double peak_rate(const tool::ParamConfig& c) {
  if (!c.has_rates()) return *c.lr;
  return *std::max_element(c.lr_schedule->rates.begin(), c.lr_schedule->rates.end());
}

/// Rejects settings that `muonrt train` does not support.
void check_rule(const std::string& file, const tool::ParamConfig& c, int64_t steps) {
  const auto reject = [&](const char* key, const char* why) {
    throw std::runtime_error(file + ": " + c.rule + "." + key +
                             " is not supported by `muonrt train`, because " + why + "; omit it");
  };
  if (c.role == "frozen") reject("role: frozen", "every parameter is trained");
  if (c.is_stack()) reject("view: stack", "the model has no experts");
  const tool::LayoutConfig& l = c.layout;
  for (const std::string* words :
       {&l.placements, &l.grad_placements, &l.reading, &l.cuts, &l.row_bounds, &l.owner, &l.flat}) {
    if (!words->empty()) reject("placements", "layouts come from --mesh");
  }
  if (!c.parts.kind.empty()) reject("parts", "no matrix is fused");
  if (c.transposed.value_or(false)) reject("transposed", "weights are outputs x inputs");
  if (c.batch_dims || c.row_dims) reject("batch_dims, row_dims", "weights have two dimensions");
  if (!(peak_rate(c) > 0)) reject("lr: 0", "the schedule multiplies it");
  if (c.has_rates() || !c.lr_schedule || c.lr_schedule->min_factor > 0) return;
  if (c.lr_schedule->total_steps < steps)
    throw std::runtime_error(
        file + ": " + c.rule + ".lr_schedule: total_steps is " +
        std::to_string(c.lr_schedule->total_steps) + ", but --steps is " + std::to_string(steps) +
        ", and the rate of the last steps would be 0; omit total_steps, which is then --steps, or "
        "set min_factor");
}

}  // namespace

std::string optimizer_text(const std::string& name) {
  const bool path = name.find('/') != std::string::npos || name.ends_with(".json");
  return path ? tool::read_text(name) : std::string(tool::optimizer_json(name));
}

TrainOptimizer::TrainOptimizer(const std::string& name, const Config& model, double qk_clip,
                               int64_t steps)
    : config_(tool::parse_config(optimizer_text(name), name, steps)) {
  take_rules(model, steps);
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    clip(model, layer, false, qk_clip);
    clip(model, layer, true, qk_clip);
  }
}

void TrainOptimizer::take_rules(const Config& model, int64_t steps) {
  const std::vector<ParamSpec> specs = param_specs(model);
  std::vector<size_t> rule_of;
  for (const ParamSpec& spec : specs) {
    rule_of.push_back(config_.rule_of(spec.name, spec.shape));
    const tool::ParamConfig& c = config_.rules[rule_of.back()].config;
    check_rule(config_.file, c, steps);
    if (c.is_muon() && spec.shape.size() < 2) {
      throw std::runtime_error(config_.file + ": " + c.rule + ".role: muon, but '" + spec.name +
                               "' is a vector; give it a rule with the role adamw");
    }
  }
  config_.require_muon(rule_of);
  const std::set<size_t> used(rule_of.begin(), rule_of.end());
  used_.assign(used.begin(), used.end());
  for (const size_t rule : used_) rules_.emplace_back(config_.file, config_.rules[rule].config);
  lr_ = peak_rate(config_.rules[rule_of.front()].config);
  bool matrices = false;
  for (const size_t rule : rule_of) {
    const tool::ParamConfig& c = config_.rules[rule].config;
    if (c.is_muon() && !matrices) lr_ = peak_rate(c);
    matrices = matrices || c.is_muon();
    Param& p = params_.emplace_back();
    p.group =
        static_cast<int32_t>(std::lower_bound(used_.begin(), used_.end(), rule) - used_.begin());
    muonrt_qk_clip_init(&p.clip);
  }
}

void TrainOptimizer::clip(const Config& model, int64_t layer, bool keys, double threshold) {
  const auto what = keys ? ParamIndex::kWk : ParamIndex::kWq;
  Param& p = params_[static_cast<size_t>(ParamIndex::layer(layer, what))];
  const size_t rule = used_[static_cast<size_t>(p.group)];
  const tool::ParamConfig& c = config_.rules[rule].config;
  const muonrt_qk_clip_t* from = rules_[static_cast<size_t>(p.group)].qk_clip();
  const int32_t kind = keys ? MUONRT_QK_KEY : MUONRT_QK_QUERY;
  if (!c.is_muon() || (!from && threshold <= 0)) return;
  if (from) p.clip = *from;
  if (from && from->kind != kind && from->kind != MUONRT_QK_FROM_NAME) {
    throw std::runtime_error(config_.file + ": " + c.rule + ".qk_clip.kind: " + c.qk_clip->kind +
                             ", but layer " + std::to_string(layer) + "'s " +
                             (keys ? "wk holds keys" : "wq holds queries"));
  }
  p.clipped = true;
  p.clip.kind = kind;
  p.clip.layer = static_cast<int32_t>(layer);
  p.clip.heads = p.clip.kv_heads = static_cast<int32_t>(model.heads);
  p.clip.head_dim = static_cast<int32_t>(model.head_dim());
  if (threshold > 0) p.clip.threshold = threshold;
  if (clipped_layers_.empty() || clipped_layers_.back() != layer) {
    clipped_layers_.push_back(static_cast<int32_t>(layer));
  }
}

tool::OptimizerOptions TrainOptimizer::options() const {
  return tool::bound_options(config_, used_);
}

std::vector<muonrt_group_t> TrainOptimizer::groups(int64_t step) const {
  std::vector<muonrt_group_t> out;
  for (const tool::BoundRule& rule : rules_) out.push_back(rule.group(step));
  return out;
}

bool TrainOptimizer::constant() const {
  return std::all_of(rules_.begin(), rules_.end(),
                     [](const tool::BoundRule& rule) { return rule.constant(); });
}

bool TrainOptimizer::has_lr_schedule() const {
  return std::any_of(used_.begin(), used_.end(), [&](size_t rule) {
    return config_.rules[rule].config.lr_schedule.has_value();
  });
}

void TrainOptimizer::fill(muonrt_param_t& param, int64_t index) const {
  const Param& p = params_[static_cast<size_t>(index)];
  param.group = p.group;
  param.qk_clip = p.clipped ? &p.clip : nullptr;
  rules_[static_cast<size_t>(p.group)].set_exchange(param);
}

}  // namespace muonrt::train
