#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/simulate.hpp"
#include "optimizer/planning.hpp"
#include "plan/machine/profile.hpp"

namespace muonrt {

/// The step of one way to distribute the matrices.
struct StrategyStep {
  std::string name;
  std::string assumption;    // a sentence
  double seconds = 0;        // until the last simulated rank has finished
  RankTimes critical;        // of the rank with the most products and local work
  int64_t memory_bytes = 0;  // of the rank that needs the most
  int64_t sent_bytes = 0;    // of the rank that sends the most
};

/// Computes the steps of other strategies on the same machine, for the same layouts. Symmetric
/// products, batches, transport dtype and link model are those of muonrt for all of them.
/// @param ours  with the time of its step. If it repeats matrices in replicas, the others divide
///     those of a plan that does not. The trainer reduces partial gradients for the others.
/// Errors: NOT_SUPPORTED if the caller's functions exchange the messages, because their time is
/// unknown.
std::vector<StrategyStep> compare_strategies(const Planning& ours, const Simulation& step,
                                             const MachineProfile& profile);

/// The parts of it, for tests. Each takes a plan that orthogonalizes each matrix once.
StrategyStep gather_everywhere(const Planning& once, const MachineProfile& profile);
StrategyStep round_robin_in_chunks(const Planning& once, const MachineProfile& profile);
StrategyStep one_by_one(const Planning& once, const MachineProfile& profile);
StrategyStep whole_owners(const Planning& once, const MachineProfile& profile, bool permanent);

}  // namespace muonrt
