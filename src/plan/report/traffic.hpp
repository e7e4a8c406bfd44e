#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.hpp"

namespace muonrt {

/// What one step means for a rank.
struct RankTraffic {
  /// Bytes to and from other ranks, gather and return. What is forwarded has gaps of less than 64
  /// bytes between the messages that it consists of.
  int64_t sent = 0, received = 0;
  int64_t messages = 0;  // to other ranks
  int64_t peers = 0;     // other ranks that it sends to in one exchange of a return, at most
  int32_t chunks = 0;    // in which it takes part
  int32_t owned = 0;     // matrices
  MemoryPlan memory;
};

struct PlanTraffic {
  std::vector<RankTraffic> ranks;
  std::vector<int64_t> moved;  // bytes between ranks, of each parameter
  int64_t moved_total = 0;
};

/// Sizes of all messages of all ranks, in one pass that builds no copy lists: 1,024 ranks take a
/// fraction of a second.
PlanTraffic measure_traffic(const Plan& plan);

}  // namespace muonrt
