#pragma once

#include <cstdint>

#include "backend/scalars.hpp"
#include "plan/problem.hpp"

namespace muonrt {

/// What a rank knows of a step when its streams have ended, or have failed.
struct StepEndState {
  Vote vote_sum;     // the vote's sum, as it came back, or its preset
  Vote confirm_sum;  // eager: the second vote's
  int64_t world = 0, fingerprint = 0;
  CommitMode commit = CommitMode::kAtomic;
  bool vote_sent = false;      // this rank's ballot may have reached its peers
  bool vote_returned = false;  // the vote's reduction came back
  bool failed = false;         // streams, or what followed them, met an error
  bool comm_failed = false;    // the communicator has met one
};

enum class StepOutcome : int32_t {
  kCommitted,
  kSkipped,   // voted down: something was not finite. The ranks exchange who found it
  kRejected,  // voted down. The ranks exchange why
  // What follows ends the optimizer, without another exchange.
  kTorn,       // parts may be committed here
  kUndecided,  // nothing is committed here; a peer may have committed
  kFailed,     // nothing is committed anywhere
};

/// The vote that a step's commit ends with.
inline const Vote& final_vote_sum(const StepEndState& end) {
  return end.commit == CommitMode::kEager ? end.confirm_sum : end.vote_sum;
}

/// What the step has become. Where streams end without an error, it follows from reduced words and
/// the rank's own stamp: all ranks go on to the same exchange, or to none. Two ranks of unequal
/// stamps could differ only if a sum of other stamps were the world times one of them, which is as
/// likely as equal hashes.
StepOutcome determine_outcome(const StepEndState& end);

}  // namespace muonrt
