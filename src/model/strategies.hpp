#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/simulate.hpp"
#include "optimizer/planning.hpp"
#include "plan/machine/profile.hpp"

namespace muonrt {

/// The modelled step of one strategy for distributing the matrices.
struct StrategyStep {
  std::string name;
  std::string assumption;    // one sentence
  double seconds = 0;        // when the last simulated rank has finished
  RankTimes critical;        // times of the rank with the most products and local work
  int64_t memory_bytes = 0;  // memory of the rank that needs the most
  int64_t sent_bytes = 0;    // bytes from the rank that sends the most
};

/// Computes the steps of other strategies on the same machine and for the same layouts. All
/// strategies use the symmetric products, batches, transport dtype and link model of muonrt. The
/// other strategies assume that the trainer reduces partial gradients.
/// @param ours  The plan of muonrt; `step` is its modelled step. If this plan repeats matrices in
///     replicas, the other strategies distribute the matrices of a plan that does not repeat them.
/// Errors: NOT_SUPPORTED if the caller's functions exchange the messages, because their time is
/// unknown.
std::vector<StrategyStep> compare_strategies(const Planning& ours, const Simulation& step,
                                             const MachineProfile& profile);

/// Each of these functions computes one of the steps that compare_strategies() returns; they are
/// declared here for tests. The plan must orthogonalize each matrix once.
StrategyStep gather_everywhere(const Planning& once, const MachineProfile& profile);
StrategyStep round_robin_in_chunks(const Planning& once, const MachineProfile& profile);
StrategyStep one_by_one(const Planning& once, const MachineProfile& profile);
StrategyStep whole_owners(const Planning& once, const MachineProfile& profile, bool permanent);

}  // namespace muonrt
