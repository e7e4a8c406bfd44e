#include "optimizer/step_outcome.hpp"

namespace muonrt {

StepOutcome determine_outcome(const StepEndState& end) {
  const auto consented = [&](const Vote& sum) {
    return vote_passes(sum, end.world, end.fingerprint);
  };
  // After the last vote nothing is exchanged: what ends the communicator then is the next step's.
  if (end.failed || (end.comm_failed && !consented(final_vote_sum(end)))) {
    // A GPU's stream passes by a reduction that was aborted; the box then holds its preset.
    const bool returned = end.vote_returned && end.vote_sum.consent != rejecting_vote_sum().consent;
    if (returned && consented(end.vote_sum)) return StepOutcome::kTorn;
    return end.vote_sent && !returned ? StepOutcome::kUndecided : StepOutcome::kFailed;
  }
  if (consented(end.vote_sum))
    return consented(final_vote_sum(end)) ? StepOutcome::kCommitted : StepOutcome::kTorn;
  const bool same_stamps =
      static_cast<uint64_t>(end.vote_sum.fingerprint) ==
      static_cast<uint64_t>(end.world) * static_cast<uint64_t>(end.fingerprint);
  // A rank with an error of its own adds to neither count.
  const bool all_well = end.vote_sum.consent + end.vote_sum.nonfinite == end.world;
  return same_stamps && all_well && end.vote_sum.nonfinite > 0 ? StepOutcome::kSkipped
                                                               : StepOutcome::kRejected;
}

}  // namespace muonrt
