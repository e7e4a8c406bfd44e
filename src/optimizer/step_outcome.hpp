#pragma once

#include <cstdint>

#include "backend/scalars.hpp"
#include "plan/problem.hpp"

namespace muonrt {

/// What a rank can tell about a step after its streams have finished or failed.
struct StepEndState {
  Vote vote_sum;  // sum of the votes; rejecting_vote_sum() if it has not arrived
  /// Sum of the confirming votes of an eager commit; rejecting_vote_sum() if it has not arrived.
  Vote confirm_sum;
  int64_t world = 0, fingerprint = 0;
  CommitMode commit = CommitMode::kAtomic;
  bool vote_sent = false;      // true if this rank's vote may have reached its peers
  bool vote_returned = false;  // true if the reduction of the votes has returned, accepted or not
  bool failed = false;         // true if a stream, or the host's work after it, has failed
  bool comm_failed = false;    // true if the communicator has failed
};

enum class StepOutcome : int32_t {
  kCommitted,
  /// Not committed, because a value was non-finite. The ranks exchange which rank found it.
  kSkipped,
  kRejected,  // not committed for a different reason, which the ranks exchange
  // The following outcomes make the optimizer unusable. The ranks then exchange nothing more.
  kTorn,       // parts of the step may be committed on this rank
  kUndecided,  // nothing is committed on this rank, but a peer may have committed
  kFailed,     // nothing is committed on any rank
};

/// Returns the sum of the last votes of a step. If commits are eager, these are the confirming
/// votes.
inline const Vote& final_vote_sum(const StepEndState& end) {
  return end.commit == CommitMode::kEager ? end.confirm_sum : end.vote_sum;
}

/// Returns the outcome of the step. If the streams end without an error, the outcome depends only
/// on the vote sums and on the rank's own fingerprint, so all ranks continue with the same exchange
/// or with none. Different fingerprints lead to different outcomes only if the sum of all
/// fingerprints happens to equal one rank's fingerprint times the world size, which is as unlikely
/// as a hash collision.
StepOutcome determine_outcome(const StepEndState& end);

}  // namespace muonrt
