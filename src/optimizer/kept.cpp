#include <algorithm>

#include "optimizer/optimizer.hpp"

// State that a rank keeps for all holders of a parameter whose gradients are addends: of the
// matrices it owns, or of its slice. To the ops each is a parameter whose gradient is the sum.

namespace muonrt {

bool Optimizer::sums(int64_t param) const {
  return sums_gradients(plan_->problem().params[static_cast<size_t>(param)]);
}

// What is kept of a parameter lies together: matrices by number, slices by place.
void Optimizer::take_kept(const std::vector<SlotPlan>& slots) {
  for (const SlotPlan& slot : slots) kept_.insert(kept_.end(), slot.kept.begin(), slot.kept.end());
  std::vector<size_t> order(kept_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(kept_[a].param, kept_[a].first) < std::pair(kept_[b].param, kept_[b].first);
  });
  int64_t offset = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const Kept& kept = kept_[order[i]];
    if (i == 0 || kept.param != kept_[order[i - 1]].param) offset = 0;
    const auto base = [&](StateKind kind) {
      return static_cast<char*>(state_.find(kept.param, kind)->data);
    };
    const ParamView& whole = params_[kept.param];
    ParamView& view = params_[settings_.params.size() + order[i]];
    view = ParamView{};
    view.numel = kept.numel;
    view.momentum_dtype = whole.momentum_dtype;
    view.momentum = base(StateKind::kMomentum) + offset * size_of(view.momentum_dtype);
    view.grad_dtype = DType::kF32;
    view.param_dtype = whole.param_dtype;
    view.group = whole.group;
    view.scalars = whole.scalars;
    if (group_of(kept.param).role == Role::kAdamW) {
      view.variance = reinterpret_cast<float*>(base(StateKind::kVariance)) + offset;
      view.param = static_cast<char*>(whole.param) + kept.first * size_of(whole.param_dtype);
      view.form = whole.form;
      if (whole.master) view.master = whole.master + kept.first;
      if (whole.remainder) view.remainder = whole.remainder + kept.first;
    }
    offset += kept.numel;
  }
}

void Optimizer::bind_sums() {
  ParamView* view = params_ + settings_.params.size();
  for (const SlotPlan& slot : pipeline_->slots()) {
    for (const Kept& kept : slot.kept)
      (view++)->grad = pipeline_->sums(slot.slot) + kept.sum_offset;
  }
}

/// What is kept takes part in a step where its parameter does.
void Optimizer::follow_params() {
  for (size_t i = 0; i < kept_.size(); ++i) {
    ParamView& view = params_[settings_.params.size() + i];
    view.active = params_[kept_[i].param].active;
    view.grad_scale = params_[kept_[i].param].grad_scale;
  }
}

StateView Optimizer::state(int64_t param, StateKind kind) const {
  check_param(param);
  return view_of(state_.at(param, kind, settings_.params[static_cast<size_t>(param)].name));
}

std::vector<StatePiece> Optimizer::state_pieces(int64_t param, StateKind kind) const {
  check_param(param);
  return state_.at(param, kind, settings_.params[static_cast<size_t>(param)].name).pieces;
}

Findings Optimizer::findings() const {
  Findings out = current_->outcome().findings;
  const auto params = static_cast<int64_t>(settings_.params.size());
  if (out.first_param >= params)
    out.first_param = kept_[static_cast<size_t>(out.first_param - params)].param;
  return out;
}

}  // namespace muonrt
