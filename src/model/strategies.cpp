#include "model/strategies.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "plan/report/report.hpp"

namespace muonrt {

namespace {

/// A matrix of a Muon parameter with all of its parts.
struct WholeMatrix {
  size_t param;
  int64_t index;  // index in the stack
  double cost;
};

std::vector<WholeMatrix> whole_matrices(const Plan& plan) {
  std::vector<WholeMatrix> out;
  for (const Matrix& m : plan.matrices()) {
    const auto param = static_cast<size_t>(m.param);
    const int64_t index = m.index / parts_of(plan.problem().params[param]);
    if (out.empty() || out.back().param != param || out.back().index != index)
      out.push_back({param, index, 0});
    out.back().cost += m.cost;
  }
  return out;
}

/// Returns settings in which the holders of each matrix take turns as owners.
/// @param shard_group  If true, only the ranks of one shard group take turns, and each replica
///     repeats the work.
OptimizerSettings with_turns(const Planning& once, const std::vector<WholeMatrix>& matrices,
                             bool shard_group) {
  const Plan& plan = once.plan();
  OptimizerSettings out = once.settings();
  out.assign_owner = {};
  out.commit = CommitMode::kEager;
  out.replica_mode = shard_group ? ReplicaMode::kEach : ReplicaMode::kOnce;
  for (ParamSettings& p : out.params) {
    p.owner = -1;
    p.owners.clear();
    p.priority = 0;
  }
  std::map<const HolderGroup*, size_t> turns;
  for (const WholeMatrix& m : matrices) {
    ParamSettings& p = out.params[m.param];
    const auto param = static_cast<int32_t>(m.param);
    const HolderGroup& group =
        plan.holders().group(param, m.index * parts_of(plan.problem().params[m.param]));
    const size_t turn = turns[&group]++;
    const int32_t owner = shard_group
                              ? group.rank_of(0, 0, static_cast<int64_t>(turn) % group.shards)
                              : group.members[turn % group.members.size()].rank;
    if (p.view != View::kStack) {
      p.owner = owner;
      continue;
    }
    p.owners.resize(static_cast<size_t>(stack_size(p)), owner);
    p.owners[static_cast<size_t>(m.index)] = owner;
  }
  return out;
}

bool has_partial_gradients(const OptimizerSettings& settings) {
  return std::any_of(settings.params.begin(), settings.params.end(),
                     [](const ParamSettings& p) { return !grad_layout(p).partial_dims().empty(); });
}

bool has_replicas(const Plan& plan) {
  return std::any_of(plan.matrices().begin(), plan.matrices().end(), [&](const Matrix& m) {
    return plan.holders().group(m.param, m.index).replicas > 1;
  });
}

StrategyStep simulated(const OptimizerSettings& settings, const Planning& once,
                       const MachineProfile& profile) {
  const Planning planning(settings, once.plan().problem().options.world);
  const Simulation step = simulate(planning, profile);
  const PlanReport& report = planning.reports().full;
  StrategyStep out;
  out.seconds = step.seconds;
  out.critical = step.critical;
  out.memory_bytes = total_bytes(report, report.largest_rank);
  out.sent_bytes = report.sent.largest;
  return out;
}

}  // namespace

StrategyStep round_robin_in_chunks(const Planning& once, const MachineProfile& profile) {
  std::vector<WholeMatrix> matrices = whole_matrices(once.plan());
  std::stable_sort(matrices.begin(), matrices.end(),
                   [](const WholeMatrix& a, const WholeMatrix& b) { return a.cost > b.cost; });
  OptimizerSettings settings = with_turns(once, matrices, true);
  settings.chunk_bytes = 1;  // one matrix of each owner
  settings.window = 6;
  StrategyStep out = simulated(settings, once, profile);
  out.name = "sorted round-robin";
  out.assumption =
      "matrices sorted by cost, owners in turn in each shard group, chunks of one matrix per rank, "
      "six in flight; every replica repeats the products (Motif).";
  return out;
}

StrategyStep one_by_one(const Planning& once, const MachineProfile& profile) {
  OptimizerSettings settings = with_turns(once, whole_matrices(once.plan()), false);
  settings.chunk_bytes = 1;
  settings.window = 2;
  StrategyStep out = simulated(settings, once, profile);
  out.name = "one by one";
  out.assumption =
      "owners in turn over all holders in the order of the model; each rank works on one matrix "
      "and "
      "prefetches the next one (the PyTorch design with prefetch_count 1).";
  return out;
}

std::vector<StrategyStep> compare_strategies(const Planning& ours, const Simulation& step,
                                             const MachineProfile& profile) {
  const PlanReport& report = ours.reports().full;
  StrategyStep first;
  first.name = "muonrt";
  first.assumption = "this plan.";
  first.seconds = step.seconds;
  first.critical = step.critical;
  first.memory_bytes = total_bytes(report, report.largest_rank);
  first.sent_bytes = report.sent.largest;
  std::vector<StrategyStep> out = {std::move(first)};
  if (has_replicas(ours.plan()) && !ours.plan().each_replica() &&
      !has_partial_gradients(ours.settings())) {
    OptimizerSettings settings = ours.settings();
    settings.replica_mode = ReplicaMode::kEach;
    out.push_back(simulated(settings, ours, profile));
    out.back().name = "muonrt, each";
    out.back().assumption =
        "this plan, but every replica orthogonalizes all matrices (--replica-mode each).";
  }
  std::optional<Planning> once;
  if (ours.plan().each_replica() || has_partial_gradients(ours.settings())) {
    OptimizerSettings settings = ours.settings();
    settings.replica_mode = ReplicaMode::kOnce;
    for (ParamSettings& p : settings.params) {
      p.layout = p.layout.with_partial({});
      if (p.grad_layout) p.grad_layout = p.grad_layout->with_partial({});
    }
    once.emplace(std::move(settings), ours.plan().problem().options.world, true);
  }
  const Planning& base = once ? *once : ours;
  out.push_back(gather_everywhere(base, profile));
  out.push_back(round_robin_in_chunks(base, profile));
  out.push_back(one_by_one(base, profile));
  out.push_back(whole_owners(base, profile, false));
  out.push_back(whole_owners(base, profile, true));
  return out;
}

}  // namespace muonrt
