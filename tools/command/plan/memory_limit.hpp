#pragma once

#include <cstdint>
#include <string>

#include "command/plan/machine.hpp"
#include "command/plan/planned_model.hpp"

namespace muonrt::tool {

/// The settings that a limit of memory has led to.
struct MemoryChoice {
  int64_t chunk_bytes = 0, window = 0;
  std::string commit;
  int64_t total_bytes = 0;  // of the rank that needs the most
  int64_t plans = 0;        // number of plans that were compared

  std::string flags() const;     // of the command line
  std::string opt_json() const;  // the same for opt.json
};

/// Chooses chunk_bytes, window and commit so that no rank needs more than `limit` bytes: those with
/// the fastest step on the machine, or, without one, those with the fewest bytes between ranks,
/// then the most bytes that can overlap with products, then the fewest chunks. What the command
/// line states is kept.
/// Throws std::runtime_error with the smallest limit that would do, if nothing fits.
MemoryChoice choose_under_limit(const PlanArguments& a, const ModelStages& model,
                                const Machine* machine, int64_t limit);

}  // namespace muonrt::tool
