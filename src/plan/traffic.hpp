#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.hpp"

namespace muonrt {

/// What one step means for a rank.
struct RankTraffic {
  int64_t sent = 0, received = 0;  // bytes to and from other ranks, gather and return
  int64_t messages = 0;            // to other ranks
  int32_t slots = 0;               // in which it takes part
  int32_t owned = 0;               // matrices
  MemoryPlan memory;               // equal to Plan::memory
};

struct Traffic {
  std::vector<RankTraffic> ranks;
  std::vector<int64_t> moved;  // bytes between ranks, of each parameter
  int64_t moved_total = 0;
};

/// Sizes of all messages of all ranks, in one pass that builds no copy lists: 1,024 ranks take a
/// fraction of a second.
Traffic measure_traffic(const Plan& plan);

}  // namespace muonrt
