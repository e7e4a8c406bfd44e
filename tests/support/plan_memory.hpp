#pragma once

#include "plan/buffers.hpp"
#include "plan/plan.hpp"

namespace muonrt {

/// Computes the memory of one rank: the sum over its chunks, elements and matrices, plus the
/// buffers of the pipeline. measure_traffic() computes the same numbers for all ranks in one pass.
inline MemoryPlan memory_of(const Plan& plan, int rank) {
  const std::vector<ParamSpec>& params = plan.problem().params;
  RankBuffers buffers(plan.problem().options);
  MemoryPlan out;
  for (const RankChunk& chunk : plan.rank_chunks(rank)) {
    buffers.add(chunk.index, bytes_of(chunk, rank));
    for (const OwnerState& owner_state : chunk.owner_state)
      out.state_bytes +=
          owner_state.numel * moment_bytes(params[static_cast<size_t>(owner_state.param)]);
  }
  out.message_bytes = buffers.message_bytes();
  out.staged_bytes = buffers.staged_bytes();
  for (const ParamSpec& spec : params)
    out.state_bytes += spec.layout.local_numel(rank) * local_state_bytes(spec);
  std::vector<bool> owned(params.size(), false);
  for (const Matrix& m : plan.matrices()) {
    if (m.owner != rank || owned[static_cast<size_t>(m.param)]) continue;
    owned[static_cast<size_t>(m.param)] = true;
    out.state_bytes += params[static_cast<size_t>(m.param)].owner_bytes;
  }
  return out;
}

}  // namespace muonrt
