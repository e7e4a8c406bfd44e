#pragma once

#include <cstdint>
#include <vector>

#include "algo/newton_schulz.hpp"
#include "model/recording.hpp"
#include "plan/machine/profile.hpp"
#include "plan/plan.hpp"

namespace muonrt {

/// A chunk of a step that does not follow the stages of the pipeline. On the compute stream: a pass
/// of `pack_bytes`, then, after the gather, a pass of `unpack_bytes`, the products of the matrices,
/// a pass of `result_bytes`, and, after the return, a pass of `commit_bytes`. Passes and exchanges
/// of 0 are left out.
struct DirectChunk {
  std::vector<int32_t> matrices;  // ids in the plan; equal batches adjacent
  int64_t pack_bytes = 0, unpack_bytes = 0, result_bytes = 0, commit_bytes = 0;
  double gather_seconds = 0, return_seconds = 0;  // exchanges whose time is known
  RecordedExchange give_back, relay;              // messages of the return, and of its second level
};

/// Records a step of one rank. Gathers run ahead of the products by `window` chunks, a chunk
/// commits after the products of the next one, and a pass of `last_bytes` ends the step.
/// @param plan      only its matrices and groups are used.
/// @param methods   by group.
/// @param scratch   receives the bytes of the batch group that needs the most; may be null.
RankRecording record_direct_step(const Plan& plan, const std::vector<NewtonSchulz>& methods,
                                 const MatrixRules& rules, const MachineProfile& profile,
                                 int32_t rank, std::vector<DirectChunk> chunks, int window,
                                 int64_t last_bytes, int64_t* scratch);

}  // namespace muonrt
