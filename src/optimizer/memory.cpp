// What an optimizer takes from memory, once: state, tables, pipelines.

#include <type_traits>

#include "layout/blocks.hpp"
#include "optimizer/optimizer.hpp"
#include "optimizer/problem.hpp"

namespace muonrt {

namespace {

/// Where the weights of a parameter have their f32 value.
WeightForm weight_form(const ParamSettings& p) {
  if (p.master_kind == MasterKind::kRemainder) return WeightForm::kRemainder;
  if (p.master_kind == MasterKind::kStochastic) return WeightForm::kStochastic;
  const bool master = p.master_kind == MasterKind::kCaller || owns_master(p);
  return master ? WeightForm::kMaster : WeightForm::kPlain;
}

}  // namespace

void Optimizer::fill_view(int32_t index) {
  const ParamSettings& p = settings_.params[static_cast<size_t>(index)];
  const GroupSettings& group = group_of(index);
  ParamView& view = params_[index];
  view = ParamView{};
  view.param = p.data;
  view.grad = p.grad;
  view.numel = p.layout.local_numel(rank());
  if (p.grad_layout) view.grad_numel = p.grad_layout->local_numel(rank());
  view.param_dtype = p.dtype;
  view.grad_dtype = p.grad_dtype;
  view.momentum_dtype = group.momentum_dtype;
  view.form = weight_form(p);
  view.group = p.group;
  view.scalars = index;
  view.seed = static_cast<uint64_t>(settings_.seed);
  const auto local = [&](StateKind kind) -> void* {
    const StatePart* part = state_.find(index, kind);
    return part && part->place == StatePlace::kLocal ? part->data : nullptr;
  };
  view.momentum = local(StateKind::kMomentum);
  view.variance = static_cast<float*>(local(StateKind::kVariance));
  view.master = static_cast<float*>(local(StateKind::kMaster));
  view.remainder = static_cast<uint16_t*>(local(StateKind::kRemainder));
  require_reach(index, "data", p.data);
  require_reach(index, "grad", p.grad);
  require_reach(index, "master", view.master);
}

// What a rank holds of an AdamW parameter, by rectangles that know their place in the tensor.
std::vector<Piece> Optimizer::adamw_pieces(int32_t param) const {
  const Layout& layout = settings_.params[static_cast<size_t>(param)].layout;
  std::vector<Piece> out;
  const Layout matrix = layout.dims() > 2 ? layout.as_matrix() : layout;
  const int64_t width = matrix_shape(matrix).second;
  for (const Block& b : blocks_of(matrix, rank())) {
    Piece piece{};
    piece.param = param;
    piece.rows = b.rows;
    piece.cols = b.cols;
    piece.local_offset = b.local_offset;
    piece.local_ld = b.local_ld;
    piece.tensor_index = b.row * width + b.col;
    piece.tensor_ld = width;
    out.push_back(piece);
  }
  return out;
}

// The tables of a step, which the host writes: views of the parameters and behind them of what is
// kept of addends, the scalars of the groups, those of AdamW.
void Optimizer::take_tables(int64_t views) {
  const auto params = static_cast<int64_t>(settings_.params.size());
  const auto groups = static_cast<int64_t>(settings_.groups.size());
  const int64_t param_bytes = round_up(views * static_cast<int64_t>(sizeof(ParamView)), 64);
  const int64_t muon_bytes = round_up(groups * static_cast<int64_t>(sizeof(MuonScalars)), 64);
  const int64_t adam_bytes = round_up(params * static_cast<int64_t>(sizeof(AdamScalars)), 64);
  tables_ = Buffer::shared(*device_, param_bytes + muon_bytes + adam_bytes);
  params_ = tables_.as<ParamView>();
  muon_ = reinterpret_cast<MuonScalars*>(tables_.as<char>() + param_bytes);
  adam_ = reinterpret_cast<AdamScalars*>(tables_.as<char>() + param_bytes + muon_bytes);
  adam_steps_.assign(static_cast<size_t>(params), 0);
}

// What both pipelines see. The tables are the device's copy where it cannot read the host's.
Context Optimizer::make_context(int64_t views) {
  Context context;
  context.device = device_.get();
  context.comm = comm_.get();
  const auto params = static_cast<int64_t>(settings_.params.size());
  const auto groups = static_cast<int64_t>(settings_.groups.size());
  GradientTables tables{params_, views, muon_, groups, adam_, params};
  if (!device_->host_reaches_memory()) {
    device_tables_ = Buffer(*device_, tables_.bytes());
    char* const here = tables_.as<char>();
    char* const there = device_tables_.as<char>();
    const auto copy_of = [&](auto*& table) {
      table = reinterpret_cast<std::remove_reference_t<decltype(table)>>(
          there + (reinterpret_cast<char*>(table) - here));
    };
    copy_of(tables.params);
    copy_of(tables.groups);
    copy_of(tables.adam);
    context.device_tables = there;
    context.host_tables = here;
    context.table_bytes = tables_.bytes();
  }
  context.tables = {.params = tables.params, .groups = tables.groups, .adam = tables.adam};
  context.gradient_tables = tables;
  context.newton_schulz = &newton_schulz_;
  context.functions = settings_.functions;
  context.failure = &function_failure_;
  context.serial = settings_.serial;
  context.world = comm_->size();
  return context;
}

void Optimizer::take_memory() {
  const auto params = static_cast<int64_t>(settings_.params.size());
  std::vector<SlotPlan> slots = plan_->rank_slots(rank());
  state_ = State(*device_, settings_, *plan_, slots, rank());
  int64_t views = params;
  for (const SlotPlan& slot : slots) views += std::ssize(slot.kept);
  take_tables(views);
  AdamWork adam;
  std::vector<int32_t> all;
  for (int32_t i = 0; i < params; ++i) {
    fill_view(i);
    if (params_[i].grads() > 0) all.push_back(i);
    if (params_[i].numel == 0) continue;
    if (group_of(i).role != Role::kAdamW || sums(i)) continue;
    if (params_[i].form == WeightForm::kStochastic) {
      const auto pieces = adamw_pieces(i);
      adam.placed.push_back(i);
      adam.pieces.insert(adam.pieces.end(), pieces.begin(), pieces.end());
    } else {
      adam.whole.push_back(i);
    }
  }
  take_kept(slots);
  state_.start(*device_, settings_);
  GuardWork guards = make_guards();
  Context context = make_context(views);
  const auto make_pipeline = [&](const Plan& plan, std::vector<SlotPlan> of_plan) {
    context.plan = &plan;
    // By the matrices of the whole plan; NorMuon and blocks exclude each other.
    context.normuon = &plan == plan_.get() ? &state_.normuon().states() : nullptr;
    return std::make_unique<Pipeline>(context, rank(), std::move(of_plan), adam, all, guards,
                                      settings_.health_every > 0, settings_.poison);
  };
  pipeline_ = make_pipeline(*plan_, std::move(slots));
  if (block_plan_) block_pipeline_ = make_pipeline(*block_plan_, block_plan_->rank_slots(rank()));
  current_ = pipeline_.get();
  current_plan_ = plan_.get();
  bind_sums();
}

}  // namespace muonrt
