#include "optimizer/step_outcome.hpp"

namespace muonrt {

StepOutcome determine_outcome(const StepEndState& end) {
  const auto accepted = [&](const Vote& sum) {
    return vote_passes(sum, end.world, end.fingerprint);
  };
  // A committed step needs no exchange after its last vote. If the communicator fails after that
  // vote, the next step returns the error.
  if (end.failed || (end.comm_failed && !accepted(final_vote_sum(end)))) {
    // A GPU stream continues after a reduction that was aborted. The vote sum then still has the
    // value that it had at the beginning of the step.
    const bool returned = end.vote_returned && end.vote_sum.consent != rejecting_vote_sum().consent;
    if (returned && accepted(end.vote_sum)) return StepOutcome::kTorn;
    return end.vote_sent && !returned ? StepOutcome::kUndecided : StepOutcome::kFailed;
  }
  if (accepted(end.vote_sum))
    return accepted(final_vote_sum(end)) ? StepOutcome::kCommitted : StepOutcome::kTorn;
  const bool same_fingerprints =
      static_cast<uint64_t>(end.vote_sum.fingerprint) ==
      static_cast<uint64_t>(end.world) * static_cast<uint64_t>(end.fingerprint);
  // A rank with an error is in neither of the two counts.
  const bool no_errors = end.vote_sum.consent + end.vote_sum.nonfinite == end.world;
  return same_fingerprints && no_errors && end.vote_sum.nonfinite > 0 ? StepOutcome::kSkipped
                                                                      : StepOutcome::kRejected;
}

}  // namespace muonrt
