#include "optimizer/param_views.hpp"

#include <algorithm>

namespace muonrt {

namespace {

/// Returns where the f32 values of a parameter's weights are stored.
WeightForm weight_form(const ParamSettings& p) {
  if (p.master_kind == MasterKind::kRemainder) return WeightForm::kRemainder;
  if (p.master_kind == MasterKind::kStochastic) return WeightForm::kStochastic;
  const bool master = p.master_kind == MasterKind::kCaller || owns_master(p);
  return master ? WeightForm::kMaster : WeightForm::kParamOnly;
}

}  // namespace

ParamView param_view(const OptimizerSettings& settings, const State& state, int32_t param,
                     int rank) {
  const ParamSettings& p = settings.params[static_cast<size_t>(param)];
  ParamView view;
  view.param = p.data;
  view.grad = p.grad;
  view.numel = p.layout.local_numel(rank);
  if (p.grad_layout) view.grad_numel = p.grad_layout->local_numel(rank);
  view.param_dtype = p.dtype;
  view.grad_dtype = p.grad_dtype;
  view.momentum_dtype = group_of(settings, param).momentum_dtype;
  view.form = weight_form(p);
  view.group = p.group;
  view.scalars = param;
  view.seed = static_cast<uint64_t>(settings.seed);
  view.key = static_cast<uint32_t>(param);
  const auto local = [&](StateKind kind) -> void* {
    const StateEntry* entry = state.find(param, kind);
    return entry && entry->location == StateLocation::kShard ? entry->data : nullptr;
  };
  view.momentum = local(StateKind::kMomentum);
  view.variance = static_cast<float*>(local(StateKind::kVariance));
  view.master = static_cast<float*>(local(StateKind::kMaster));
  view.remainder = static_cast<uint16_t*>(local(StateKind::kRemainder));
  return view;
}

// The owner state of one parameter is contiguous. It contains matrices in the order of their index,
// or slices in the order of their first element.
std::vector<ParamView> make_owner_state_views(const OptimizerSettings& settings, const State& state,
                                              const ParamView* params,
                                              const std::vector<OwnerState>& owner_state) {
  std::vector<ParamView> out(owner_state.size());
  std::vector<size_t> order(owner_state.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(owner_state[a].param, owner_state[a].first) <
           std::pair(owner_state[b].param, owner_state[b].first);
  });
  int64_t offset = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const OwnerState& one = owner_state[order[i]];
    if (i == 0 || one.param != owner_state[order[i - 1]].param) offset = 0;
    const auto base = [&](StateKind kind) {
      return static_cast<char*>(state.find(one.param, kind)->data);
    };
    const ParamView& whole = params[one.param];
    ParamView& view = out[order[i]];
    view.numel = one.numel;
    view.momentum_dtype = whole.momentum_dtype;
    view.momentum = base(StateKind::kMomentum) + offset * size_of(view.momentum_dtype);
    view.grad_dtype = DType::kF32;
    view.param_dtype = whole.param_dtype;
    view.group = whole.group;
    view.scalars = whole.scalars;
    if (group_of(settings, one.param).role == Role::kAdamW) {
      view.variance = reinterpret_cast<float*>(base(StateKind::kVariance)) + offset;
      view.param = static_cast<char*>(whole.param) + one.first * size_of(whole.param_dtype);
      view.form = whole.form;
      if (whole.master) view.master = whole.master + one.first;
      if (whole.remainder) view.remainder = whole.remainder + one.first;
    }
    offset += one.numel;
  }
  return out;
}

}  // namespace muonrt
