#include "optimizer/param_tables.hpp"

#include <algorithm>
#include <cmath>

#include "base/checked.hpp"
#include "base/fits_f32.hpp"
#include "base/hash.hpp"
#include "optimizer/methods/intervals.hpp"
#include "optimizer/param_views.hpp"
#include "optimizer/settings/describe.hpp"

namespace muonrt {

namespace {

/// Converts a setting to f32 for the kernels. Errors: INVALID_ARGUMENT if the value overflows or
/// becomes 0.
float as_float(const char* what, double value) {
  MUONRT_REQUIRE(fits_f32(value), Status::kInvalidArgument, what, " is ", value,
                 ", which f32 cannot represent; use 0 or a number from 1e-37 to 1e38");
  return static_cast<float>(value);
}

/// Checks a product that the kernels compute in f32: a group's learning rate or decay, multiplied
/// by the factors of a matrix. Errors: INVALID_ARGUMENT if the product overflows or becomes 0.
void check_product(const std::string& param, const char* what, double product) {
  MUONRT_REQUIRE(fits_f32(product), Status::kInvalidArgument, "step: param '", param, "': ", what,
                 " is ", product,
                 ", which f32 cannot represent; use 0 or a number from 1e-37 to 1e38");
}

void check_products(const ParamSpec& spec, const MuonScalars& scalars) {
  const auto check = [&](double update_scale, double decay_scale) {
    check_product(spec.name, "lr x all factors and scales", scalars.rate * update_scale);
    check_product(spec.name, "weight decay of a step", scalars.decay * decay_scale);
  };
  if (spec.parts.empty()) check(spec.update_scale, spec.decay_scale);
  for (const MatrixPart& part : spec.parts) check(part.update_scale, part.decay_scale);
}

/// Returns the fraction of a weight that decay subtracts in a step with this learning rate.
float decay_of(const GroupSettings& group, double rate) {
  const char* const what = "step: weight decay of a step";
  switch (group.weight_decay_kind) {
    case WeightDecayKind::kIndependent:
      return as_float(what, group.weight_decay);
    case WeightDecayKind::kLrSquared:
      return as_float(what, rate * rate * group.weight_decay);
    case WeightDecayKind::kDecoupled:
    case WeightDecayKind::kCautious:
      break;
  }
  return as_float(what, rate * group.weight_decay);
}

bool has_params(const OptimizerSettings& settings, int64_t group) {
  return std::any_of(settings.params.begin(), settings.params.end(),
                     [&](const ParamSettings& p) { return p.group == group; });
}

/// Checks that Muon groups with a scale rule other than match_rms do not share AdamW's learning
/// rate. With match_rms, Muon's updates have the same RMS as AdamW's at the same learning rate.
/// Other rules need a different rate, from `group_lrs` or from the factors of the groups.
void require_separate_rates(const OptimizerSettings& settings, double lr) {
  for (int64_t m = 0; m < std::ssize(settings.groups); ++m) {
    const GroupSettings& muon = settings.groups[static_cast<size_t>(m)];
    if (muon.role != Role::kMuon || muon.scale_rule == ScaleRule::kMatchRms ||
        !has_params(settings, m))
      continue;
    for (int64_t a = 0; a < std::ssize(settings.groups); ++a) {
      const GroupSettings& adamw = settings.groups[static_cast<size_t>(a)];
      MUONRT_REQUIRE(adamw.role != Role::kAdamW || adamw.lr_factor != muon.lr_factor ||
                         !has_params(settings, a),
                     Status::kInvalidArgument, "step: lr is ", lr, " for all groups, but group ", m,
                     " '", muon.name, "' has scale_rule ",
                     kScaleRules[static_cast<size_t>(muon.scale_rule)].text, ", and group ", a,
                     " '", adamw.name,
                     "' has parameters of AdamW, and only match_rms has one rate for both; set "
                     "group_lrs, or different lr_factors in the groups");
    }
  }
}

void check_args(const OptimizerSettings& settings, const StepArgs& args) {
  for (int64_t g = 0; g < std::ssize(settings.groups); ++g) {
    const double lr = args.lr_of(g);
    MUONRT_REQUIRE(std::isfinite(lr) && lr >= 0, Status::kInvalidArgument, "step: lr",
                   args.group_lrs.empty() ? "" : cat(" of group ", g), " is ", lr,
                   ", but must be finite and >= 0, and it has no default; set it for every step");
  }
  if (args.group_lrs.empty()) require_separate_rates(settings, args.lr);
  MUONRT_REQUIRE(
      fits_f32(args.grad_scale_inv) && args.grad_scale_inv > 0, Status::kInvalidArgument,
      "step: grad_scale_inv is ", args.grad_scale_inv,
      ", but must be above 0 and representable in f32; use 1 if gradients are not scaled, "
      "otherwise a number from 1e-37 to 1e38");
  for (const int64_t p : args.inactive_params)
    require_param(settings, p, "step: inactive_params: ");
}

}  // namespace

ParamTables::ParamTables(Device& device, const OptimizerSettings& settings, const State& state,
                         const std::vector<RankChunk>& chunks, int rank)
    : group_count_(std::ssize(settings.groups)), updates_(settings.params.size(), 0) {
  std::vector<OwnerState> owner_state;
  for (const RankChunk& chunk : chunks)
    owner_state.insert(owner_state.end(), chunk.owner_state.begin(), chunk.owner_state.end());
  for (const OwnerState& one : owner_state) owner_params_.push_back(one.param);
  const auto bytes_of = [](int64_t count, size_t size) {
    return round_up(count * static_cast<int64_t>(size), 64);
  };
  const int64_t params = param_count();
  const int64_t param_bytes = bytes_of(params + std::ssize(owner_state), sizeof(ParamView));
  const int64_t group_bytes = bytes_of(group_count_, sizeof(MuonScalars));
  host_ = Buffer::shared(device, param_bytes + group_bytes + bytes_of(params, sizeof(AdamScalars)));
  params_ = host_.as<ParamView>();
  groups_ = reinterpret_cast<MuonScalars*>(host_.as<char>() + param_bytes);
  adam_ = reinterpret_cast<AdamScalars*>(host_.as<char>() + param_bytes + group_bytes);
  std::fill_n(groups_, group_count_, MuonScalars{});
  std::fill_n(adam_, params, AdamScalars{});
  for (int32_t i = 0; i < params; ++i) {
    const ParamView& view = params_[i] = param_view(settings, state, i, rank);
    const std::string& name = settings.params[static_cast<size_t>(i)].name;
    require_reach(device, name, "data", view.param);
    require_reach(device, name, "grad", view.grad);
    require_reach(device, name, "master", view.master);
  }
  const std::vector<ParamView> views =
      make_owner_state_views(settings, state, params_, owner_state);
  std::copy(views.begin(), views.end(), params_ + params);
  deactivate_all();
}

void ParamTables::allocate_device_copy(Device& device) {
  if (!device.host_reaches_memory()) device_ = Buffer(device, host_.bytes());
}

void ParamTables::bind_sums(const Pipeline& full_pipeline) {
  ParamView* view = params_ + param_count();
  for (const RankChunk& chunk : full_pipeline.rank_chunks()) {
    for (const OwnerState& owner_state : chunk.owner_state)
      (view++)->grad = full_pipeline.sums(chunk.index) + owner_state.sum_offset;
  }
}

int64_t ParamTables::fill_for_step(const OptimizerSettings& settings, const Plan& plan,
                                   const StepArgs& args, int64_t committed, bool in_blocks) {
  check_args(settings, args);
  choose_active(settings, args, committed);
  fill_groups(settings, args, committed, in_blocks);
  for (int64_t i = 0; i < param_count(); ++i) {
    params_[i].grad_scale = static_cast<float>(args.grad_scale_inv);
    params_[i].step = static_cast<uint64_t>(committed);
    if (group_of(settings, i).role == Role::kAdamW)
      adam_[i] = adam_scalars(settings, i, args, params_[i].grad_scale);
    else
      check_products(plan.problem().params[static_cast<size_t>(i)], groups_[params_[i].group]);
  }
  follow_params();
  return compute_fingerprint(settings, args, committed);
}

void ParamTables::choose_active(const OptimizerSettings& settings, const StepArgs& args,
                                int64_t committed) {
  for (int64_t i = 0; i < param_count(); ++i) params_[i].active = 1;
  for (const int64_t p : args.inactive_params) params_[p].active = 0;
  for (int64_t i = 0; i < param_count(); ++i) {
    ParamView& view = params_[i];
    const int64_t every = group_of(settings, i).update_every;
    view.clip_only = 0;
    if (committed % every != every - 1) {
      view.clip_only = view.active != 0 && view.grad != nullptr;
      view.active = 0;
    }
    MUONRT_REQUIRE(
        view.grad || view.grads() == 0 || !view.active, Status::kInvalidArgument, "param '",
        settings.params[static_cast<size_t>(i)].name, "': grad is NULL, but this rank holds ",
        view.grads(),
        " elements; bind a gradient, or list the parameter in inactive_params on every rank");
  }
}

void ParamTables::fill_groups(const OptimizerSettings& settings, const StepArgs& args,
                              int64_t committed, bool in_blocks) {
  for (int64_t g = 0; g < group_count_; ++g) {
    const GroupSettings& group = settings.groups[static_cast<size_t>(g)];
    MuonScalars s;
    s.momentum = static_cast<float>(group.momentum);
    s.heavy_ball = group.momentum_kind == MomentumKind::kHeavyBall;
    s.nesterov = group.nesterov;
    if (group.momentum_kind == MomentumKind::kEmaCorrected) {
      // Source: optax.contrib.muon. With Nesterov momentum, the momentum uses the correction of the
      // next step.
      const auto t = static_cast<double>(committed + 1);
      s.gradient_correction = static_cast<float>(1 / (1 - std::pow(double{s.momentum}, t)));
      s.momentum_correction =
          static_cast<float>(1 / (1 - std::pow(double{s.momentum}, t + (s.nesterov ? 1 : 0))));
    }
    const double block = in_blocks && group.blocks.period > 1 ? group.blocks.lr_factor : 1.0;
    const double rate = args.lr_of(g) * group.lr_factor;
    s.rate = as_float("step: lr x lr_factor", rate * block);
    // The learning rate for decay is the same in block steps and in full steps.
    s.decay = decay_of(group, rate);
    s.cautious = group.weight_decay_kind == WeightDecayKind::kCautious;
    s.grad_scale = static_cast<float>(args.grad_scale_inv);
    s.normuon_beta2 = static_cast<float>(group.normuon_beta2);
    groups_[g] = s;
  }
}

AdamScalars ParamTables::adam_scalars(const OptimizerSettings& settings, int64_t param,
                                      const StepArgs& args, float grad_scale) const {
  const GroupSettings& group = group_of(settings, param);
  const ParamSettings& p = settings.params[static_cast<size_t>(param)];
  const double rate = args.lr_of(p.group) * group.lr_factor * p.lr_factor;
  const auto t = static_cast<double>(updates(param) + 1);
  AdamScalars s;
  s.beta1 = static_cast<float>(group.beta1);
  s.beta2 = static_cast<float>(group.beta2);
  s.eps = static_cast<float>(group.adamw_eps);
  s.rate = as_float("step: lr x all lr_factors", rate);
  s.decay = decay_of(group, rate);
  s.cautious = group.weight_decay_kind == WeightDecayKind::kCautious;
  // The kernels compute the moments with betas that are rounded to f32, so the corrections also use
  // these rounded betas.
  const double rest1 = 1.0 - std::pow(double{s.beta1}, t);
  const double rest2 = 1.0 - std::pow(double{s.beta2}, t);
  const bool folded = group.adam_form == AdamForm::kFolded;
  s.correction1 = static_cast<float>((folded ? std::sqrt(rest2) : 1.0) / rest1);
  s.correction2 = static_cast<float>(folded ? 1.0 : 1.0 / rest2);
  if (group.adam_form == AdamForm::kNesterov) {
    // Source: optax.adamw with nesterov, which follows Dozat 2016 except for a factor beta2.
    s.correction1 = static_cast<float>(double{s.beta1} / (1.0 - std::pow(double{s.beta1}, t + 1)));
    s.gradient_weight = static_cast<float>((1.0 - double{s.beta1}) / rest1);
  }
  s.grad_scale = grad_scale;
  return s;
}

void ParamTables::set_data(int64_t param, void* data) {
  char* const before = static_cast<char*>(params_[param].param);
  for (size_t i = 0; i < owner_params_.size(); ++i) {
    ParamView& view = params_[param_count() + static_cast<int64_t>(i)];
    if (owner_params_[i] == param && view.param)
      view.param = static_cast<char*>(data) + (static_cast<char*>(view.param) - before);
  }
  params_[param].param = data;
}

void ParamTables::deactivate_all() {
  for (int64_t i = 0; i < param_count(); ++i) params_[i].active = params_[i].clip_only = 0;
  follow_params();
}

void ParamTables::follow_params() {
  for (size_t i = 0; i < owner_params_.size(); ++i) {
    ParamView& view = params_[param_count() + static_cast<int64_t>(i)];
    const ParamView& whole = params_[owner_params_[i]];
    view.active = whole.active;
    view.grad_scale = whole.grad_scale;
    view.seed = whole.seed;
    view.step = whole.step;
    view.key = whole.key;
  }
}

int64_t ParamTables::compute_fingerprint(const OptimizerSettings& settings, const StepArgs& args,
                                         int64_t committed) const {
  Hash hash;
  hash.value(committed);
  for (int64_t g = 0; g < group_count_; ++g) hash.value(args.lr_of(g));
  hash.value(args.grad_scale_inv);
  for (int64_t i = 0; i < param_count(); ++i) hash.value(int64_t{params_[i].active});
  for (const int64_t count : updates_) hash.value(count);
  for (const GroupSettings& group : settings.groups) hash_scalars(hash, group);
  return static_cast<int64_t>(hash.digest());
}

int64_t ParamTables::active_hash() const {
  Hash hash;
  for (int64_t i = 0; i < param_count(); ++i) hash.value(int64_t{params_[i].active});
  constexpr uint64_t kAboveRanks = uint64_t{1} << 32;
  return static_cast<int64_t>((hash.digest() | kAboveRanks) & ~(uint64_t{1} << 63));
}

void ParamTables::on_commit() {
  for (int64_t i = 0; i < param_count(); ++i) updates_[static_cast<size_t>(i)] += params_[i].active;
}

void ParamTables::set_steps(const OptimizerSettings& settings, int64_t steps) {
  for (int64_t i = 0; i < param_count(); ++i)
    updates_[static_cast<size_t>(i)] = steps / group_of(settings, i).update_every;
}

RandomKeys ParamTables::random_keys() const {
  RandomKeys out;
  for (int64_t i = 0; i < param_count(); ++i) {
    out.seed = params_[i].seed;
    out.keys.push_back(params_[i].key);
  }
  return out;
}

void ParamTables::set_random_keys(const RandomKeys& keys) {
  for (int64_t i = 0; i < param_count(); ++i) {
    params_[i].seed = keys.seed;
    params_[i].key = keys.keys[static_cast<size_t>(i)];
  }
}

int64_t ParamTables::param_of(int64_t view) const {
  return view < param_count() ? view : owner_params_[static_cast<size_t>(view - param_count())];
}

GradientTables ParamTables::gradient_tables() const {
  char* const host = host_.as<char>();
  char* const read = device_.data() ? device_.as<char>() : host;
  const auto on_device = [&](auto* table) {
    return reinterpret_cast<decltype(table)>(read + (reinterpret_cast<char*>(table) - host));
  };
  const int64_t views = param_count() + std::ssize(owner_params_);
  return {on_device(params_), views,        on_device(groups_), group_count_,
          on_device(adam_),   param_count()};
}

StepTables ParamTables::on_device() const {
  const GradientTables t = gradient_tables();
  return {t.params, t.groups, t.adam};
}

TableCopy ParamTables::copy() const {
  if (!device_.data()) return {};
  return {device_.data(), host_.data(), host_.bytes()};
}

}  // namespace muonrt
