#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.hpp"

namespace muonrt {

/// The traffic and memory of one rank in a step.
struct RankTraffic {
  /// Bytes to and from other ranks, gather and return. Forwarded regions include the gaps of less
  /// than 64 bytes between their messages.
  int64_t sent = 0, received = 0;
  int64_t messages = 0;  // to other ranks
  int64_t peers = 0;     // maximum number of other ranks it sends to in one exchange of a return
  int32_t chunks = 0;    // chunks in which it takes part
  int32_t owned = 0;     // matrices
  MemoryPlan memory;
  int64_t param_bytes = 0, grad_bytes = 0;  // of the caller's buffers
  int64_t master_bytes = 0;                 // masters and remainders, also those of the caller
  int64_t moment_bytes = 0;                 // state_bytes of `memory`, without masters
};

/// Bytes between ranks in the exchanges of a chunk.
struct ChunkTraffic {
  int64_t gather = 0, back = 0;
};

struct PlanTraffic {
  std::vector<RankTraffic> ranks;
  std::vector<ChunkTraffic> chunks;
  std::vector<int64_t> moved;  // bytes between ranks, by parameter
  int64_t moved_total = 0;
};

/// Computes the sizes of all messages of all ranks in one pass without block lists; 1,024 ranks
/// take a fraction of a second.
PlanTraffic measure_traffic(const Plan& plan);

}  // namespace muonrt
