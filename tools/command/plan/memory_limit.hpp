#pragma once

#include <cstdint>
#include <string>

#include "command/plan/machine.hpp"
#include "command/plan/planned_model.hpp"

namespace muonrt::tool {

/// The settings that were chosen for a memory limit.
struct MemoryChoice {
  int64_t chunk_bytes = 0, window = 0;
  std::string commit;
  int64_t total_bytes = 0;  // maximum over the ranks
  int64_t plans = 0;        // number of plans that were compared

  std::string flags() const;     // as command-line options
  std::string opt_json() const;  // as keys of opt.json
};

/// Chooses chunk_bytes, window and commit so that no rank needs more than `limit` bytes. If
/// multiple settings fit, chooses those with the fastest step on the machine. If `machine` is null,
/// instead minimizes the bytes between ranks, then maximizes the bytes that can overlap with
/// products, and then minimizes the number of chunks. Settings on the command line do not change.
/// If no settings fit, throws std::runtime_error with the smallest limit that would be sufficient.
MemoryChoice choose_under_limit(const PlanArguments& a, const ModelStages& model,
                                const Machine* machine, int64_t limit);

}  // namespace muonrt::tool
