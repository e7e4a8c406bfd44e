#include <algorithm>
#include <map>

#include "base/checked.hpp"
#include "optimizer/optimizer.hpp"

// State that a rank keeps for all holders of a parameter whose gradients are addends: of the
// matrices it owns, or of its slice. To the ops each is a parameter whose gradient is the sum.

namespace muonrt {

namespace {

/// Elements of all that is kept of each parameter.
std::map<int32_t, int64_t> totals(const std::vector<SlotPlan>& slots) {
  std::map<int32_t, int64_t> out;
  for (const SlotPlan& slot : slots) {
    for (const Kept& kept : slot.kept) out[kept.param] += kept.numel;
  }
  return out;
}

}  // namespace

bool Optimizer::sums(int64_t param) const {
  return sums_gradients(plan_->problem().params[static_cast<size_t>(param)]);
}

int64_t Optimizer::kept_bytes(const std::vector<SlotPlan>& slots) const {
  int64_t total = 0;
  for (const auto& [param, numel] : totals(slots)) {
    const GroupSettings& group = group_of(param);
    total = checked_add(total, padded_bytes(numel, size_of(group.momentum_dtype)));
    if (group.role == Role::kAdamW) total = checked_add(total, padded_bytes(numel, 4));
  }
  return total;
}

// What is kept of a parameter lies together: matrices by number, slices by place.
void Optimizer::take_kept(const std::vector<SlotPlan>& slots, char*& at) {
  kept_state_.assign(settings_.params.size(), KeptState());
  for (const auto& [param, numel] : totals(slots)) {
    KeptState& state = kept_state_[static_cast<size_t>(param)];
    const auto take = [&, count = numel](int64_t element_bytes) {
      char* here = at;
      at += padded_bytes(count, element_bytes);
      return here;
    };
    state.numel = numel;
    state.momentum = take(size_of(group_of(param).momentum_dtype));
    if (group_of(param).role == Role::kAdamW) state.variance = reinterpret_cast<float*>(take(4));
  }
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
    const KeptState& state = kept_state_[static_cast<size_t>(kept.param)];
    const ParamView& whole = params_[kept.param];
    ParamView& view = params_[settings_.params.size() + order[i]];
    view = ParamView{};
    view.numel = kept.numel;
    view.momentum_dtype = whole.momentum_dtype;
    view.momentum = state.momentum + offset * size_of(view.momentum_dtype);
    view.grad_dtype = DType::kF32;
    view.param_dtype = whole.param_dtype;
    view.group = whole.group;
    view.scalars = whole.scalars;
    if (group_of(kept.param).role == Role::kAdamW) {
      view.variance = state.variance + offset;
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

StateView Optimizer::kept_state(int64_t param, StateKind kind) const {
  const KeptState& state = kept_state_[static_cast<size_t>(param)];
  const bool adamw = group_of(param).role == Role::kAdamW;
  MUONRT_REQUIRE(kind == StateKind::kMomentum || adamw, Status::kInvalidState, "param '",
                 settings_.params[static_cast<size_t>(param)].name,
                 "' has no variance (it is a Muon parameter); ask for its momentum");
  const bool variance = kind == StateKind::kVariance;
  const DType dtype = variance ? DType::kF32 : group_of(param).momentum_dtype;
  void* data = variance ? static_cast<void*>(state.variance) : state.momentum;
  return {data, state.numel, static_cast<int32_t>(dtype),
          adamw ? StatePlace::kSlices : StatePlace::kMatrices};
}

std::vector<StatePiece> Optimizer::state_pieces(int64_t param) const {
  check_param(param);
  std::vector<StatePiece> out;
  for (const Kept& kept : kept_) {
    if (kept.param != param) continue;
    if (group_of(param).role == Role::kAdamW) {
      out.push_back({-1, kept.first, kept.numel});
    } else {
      out.push_back({plan_->matrices()[static_cast<size_t>(kept.first)].index, 0, kept.numel});
    }
  }
  std::sort(out.begin(), out.end(), [](const StatePiece& a, const StatePiece& b) {
    return std::pair(a.index, a.begin) < std::pair(b.index, b.begin);
  });
  return out;
}

Findings Optimizer::findings() const {
  Findings out = current_->outcome().findings;
  const auto params = static_cast<int64_t>(settings_.params.size());
  if (out.first_param >= params)
    out.first_param = kept_[static_cast<size_t>(out.first_param - params)].param;
  return out;
}

}  // namespace muonrt
