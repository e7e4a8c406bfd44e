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
  kOutcome,  // eager: a second vote on what was found after the first
};

struct Action {
  Stage stage;
  int32_t slot;  // world-wide chunk slot; -1 where the stage has none
  /// kOrthogonalize: the slot whose gather goes in one group with the return, -1 for none.
  int32_t gathers = -1;
  bool operator==(const Action&) const = default;
};

/// The order of a step's stages. A pure function of its arguments, so that any two ranks meet in
/// the same order; a rank passes over the slots in which it takes no part. At most `window` slots
/// lie between their gather and the end of their orthogonalization.
/// @param grouped  the return of a slot and the gather of the one that takes its place in the
/// window
///     are one exchange.
std::vector<Action> schedule(int32_t slots, int window, CommitMode commit, bool grouped = false);

const char* stage_name(Stage stage);

/// "scan gather(0) gather(1) orthogonalize(0) ..." for the printed trace.
std::string to_text(const std::vector<Action>& actions);

}  // namespace muonrt
