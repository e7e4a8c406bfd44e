#include "plan/owners/cost.hpp"

#include <algorithm>
#include <set>

#include "plan/chunk_assignment.hpp"
#include "plan/report/traffic.hpp"

namespace muonrt {

namespace {

/// Returns true if the matrices of a group are exchanged between nodes.
bool crosses_nodes(const HolderGroup& group, int32_t node_ranks, bool each_replica) {
  constexpr int32_t kUnknown = -1;
  std::vector<int32_t> nodes(static_cast<size_t>(each_replica ? group.replicas : 1), kUnknown);
  return std::any_of(group.members.begin(), group.members.end(), [&](const Holder& h) {
    int32_t& node = nodes[each_replica ? static_cast<size_t>(h.replica) : 0];
    if (node == kUnknown) node = h.rank / node_ranks;
    return node != h.rank / node_ranks;
  });
}

bool crosses_nodes(const Plan& plan) {
  const auto node_ranks = static_cast<int32_t>(plan.problem().options.machine.node_ranks);
  std::set<const HolderGroup*> known;
  return std::any_of(plan.matrices().begin(), plan.matrices().end(), [&](const Matrix& m) {
    const HolderTable& holders = plan.holders();
    for (const HolderGroup* group :
         {&holders.group(m.param, m.index), &holders.grad_group(m.param, m.index)}) {
      if (known.insert(group).second && crosses_nodes(*group, node_ranks, plan.each_replica()))
        return true;
    }
    return false;
  });
}

}  // namespace

double product_seconds(const Matrix& m, const ParamSpec& spec, const MachineProfile& machine) {
  return static_cast<double>(cost_of(m, spec)) /
         machine.product_rate(std::min(m.rows, m.cols), false, spec.iteration_dtype);
}

double step_seconds(const Plan& plan) {
  const PlanOptions& options = plan.problem().options;
  const MachineProfile& machine = options.machine;
  std::vector<double> products(static_cast<size_t>(options.world));
  for (const Matrix& m : plan.matrices()) {
    const ParamSpec& spec = plan.problem().params[static_cast<size_t>(m.param)];
    products[static_cast<size_t>(m.owner)] += product_seconds(m, spec, machine);
  }
  const PlanTraffic traffic = measure_traffic(plan);
  int64_t bytes = 0, messages = 0, exchanges = 0;
  for (const RankTraffic& rank : traffic.ranks) {
    bytes = std::max({bytes, rank.sent, rank.received});
    messages = std::max(messages, rank.messages);
  }
  int64_t moved = 0;
  for (const ChunkTraffic& chunk : traffic.chunks) {
    exchanges += (chunk.gather > 0) + (chunk.back > 0);
    moved += chunk.gather + chunk.back;
  }
  const double computed = *std::max_element(products.begin(), products.end());
  const double rate = crosses_nodes(plan) ? machine.network_bytes : machine.node_bytes;
  const double exchanged = static_cast<double>(bytes) / rate +
                           static_cast<double>(messages) * machine.message_seconds +
                           static_cast<double>(exchanges) * machine.exchange_seconds;
  const double hidden = static_cast<double>(hidden_bytes(plan, traffic)) /
                        static_cast<double>(std::max<int64_t>(moved, 1)) * exchanged;
  return std::max(computed, hidden) + exchanged - hidden;
}

}  // namespace muonrt
