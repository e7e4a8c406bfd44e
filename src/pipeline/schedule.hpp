#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/problem.hpp"

namespace muonrt {

enum class Stage : int32_t {
  kScan,           // check gradients that no pack reads; with eager commits, all of them
  kGather,         // compute and pack directions, and exchange them to the owners
  kOrthogonalize,  // unpack, Newton-Schulz, pack, and exchange back
  kVote,
  kCommit,   // unpack; write momentum; apply decay and update
  kAdamW,    // commit the other AdamW parameters
  kConfirm,  // eager commits: the second vote, on whether all updates were finite
};

struct Action {
  Stage stage;
  int32_t chunk;  // chunk index; -1 if the stage has no chunk
  bool operator==(const Action&) const = default;
};

/// Returns the stages of a step in order. A rank skips chunks that it does not take part in. The
/// order depends only on the arguments, so any two ranks communicate in the same order. At any
/// time, at most `window` chunks have started their gather but not ended their orthogonalization.
std::vector<Action> schedule(int32_t chunks, int window, CommitMode commit);

const char* stage_name(Stage stage);

/// Returns the actions as text for the printed trace, for example
/// "scan gather(0) gather(1) orthogonalize(0)".
std::string to_text(const std::vector<Action>& actions);

}  // namespace muonrt
