#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/problem.hpp"

namespace muonrt {

enum class Stage : int32_t {
  kScan,           // gradients that no pack reads: AdamW's (atomic), all (eager)
  kGather,         // momentum + pack, exchange to the owners
  kOrthogonalize,  // unpack, Newton-Schulz, pack, exchange back
  kVote,
  kCommit,   // unpack + momentum write + decay + update
  kAdamW,    // AdamW of all its parameters
  kConfirm,  // eager: a second vote on what was found after the first
};

struct Action {
  Stage stage;
  int32_t chunk;  // world-wide chunk slot; -1 where the stage has none
  bool operator==(const Action&) const = default;
};

/// The order of a step's stages. A pure function of its arguments, so that any two ranks meet in
/// the same order; a rank passes over the slots in which it takes no part. At most `window` slots
/// lie between their gather and the end of their orthogonalization.
std::vector<Action> schedule(int32_t chunks, int window, CommitMode commit);

const char* stage_name(Stage stage);

/// "scan gather(0) gather(1) orthogonalize(0) ..." for the printed trace.
std::string to_text(const std::vector<Action>& actions);

}  // namespace muonrt
