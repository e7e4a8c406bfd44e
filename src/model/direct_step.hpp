#pragma once

#include <cstdint>
#include <vector>

#include "algo/newton_schulz.hpp"
#include "model/recording.hpp"
#include "plan/machine/profile.hpp"
#include "plan/plan.hpp"

namespace muonrt {

/// A chunk of a step that does not follow the stages of the pipeline. The compute stream runs, in
/// this order:
/// 1. a pass over `pack_bytes`;
/// 2. after the gather: a pass over `unpack_bytes`, the products of the matrices, and a pass over
///    `result_bytes`;
/// 3. after the return: a pass over `commit_bytes`.
/// Passes over 0 bytes, and exchanges without messages or time, are omitted.
struct DirectChunk {
  std::vector<int32_t> matrices;  // ids in the plan; matrices of a batch are adjacent
  int64_t pack_bytes = 0, unpack_bytes = 0, result_bytes = 0, commit_bytes = 0;
  double gather_seconds = 0, return_seconds = 0;  // times of exchanges without messages
  RecordedExchange give_back, relay;              // messages of the return, and of its second level
};

/// Records a step of one rank. Gathers run ahead of the products by `window` chunks, and a chunk
/// commits after the products of the next chunk. The step ends with a pass over `last_bytes`.
/// @param plan      Only its matrices and groups are used.
/// @param methods   One entry for each group.
/// @param scratch   Receives the maximum number of scratch bytes of a batch group; may be null.
RankRecording record_direct_step(const Plan& plan, const std::vector<NewtonSchulz>& methods,
                                 const MatrixRules& rules, const MachineProfile& profile,
                                 int32_t rank, std::vector<DirectChunk> chunks, int window,
                                 int64_t last_bytes, int64_t* scratch);

}  // namespace muonrt
