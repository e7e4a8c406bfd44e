#pragma once

#include <cstdint>

#include "backend/scalars.hpp"
#include "plan/problem.hpp"

namespace muonrt {

/// What a rank knows of a step when its streams have ended, or have failed.
struct StepEnd {
  Ballot verdict;  // the vote's sum, as it came back, or its preset
  Ballot outcome;  // eager: the second vote's
  int64_t world = 0, stamp = 0;
  CommitMode commit = CommitMode::kAtomic;
  bool vote_entered = false;  // this rank's ballot may have reached its peers
  bool vote_passed = false;   // the vote's reduction came back
  bool failed = false;        // streams, or what followed them, met an error
  bool comm_failed = false;   // the communicator has met one
};

enum class StepResult : int32_t {
  kCommitted,
  kSkipped,   // voted down: something was not finite. The ranks exchange who found it
  kRejected,  // voted down. The ranks exchange why
  // What follows ends the optimizer, without another exchange.
  kTorn,       // parts may be committed here
  kUndecided,  // nothing is committed here; a peer may have committed
  kFailed,     // nothing is committed anywhere
};

/// The vote that a step's commit ends with.
inline const Ballot& last_ballot(const StepEnd& end) {
  return end.commit == CommitMode::kEager ? end.outcome : end.verdict;
}

/// What the step has become. Where streams end without an error, it follows from reduced words and
/// the rank's own stamp: all ranks go on to the same exchange, or to none. Two ranks of unequal
/// stamps could differ only if a sum of other stamps were the world times one of them, which is as
/// likely as equal hashes.
StepResult judge(const StepEnd& end);

}  // namespace muonrt
