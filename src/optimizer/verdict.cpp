#include "optimizer/verdict.hpp"

namespace muonrt {

StepResult judge(const StepEnd& end) {
  const auto consented = [&](const Ballot& sum) { return passes(sum, end.world, end.stamp); };
  // After the last vote nothing is exchanged: what ends the communicator then is the next step's.
  if (end.failed || (end.comm_failed && !consented(last_ballot(end)))) {
    // A GPU's stream passes by a reduction that was aborted; the box then holds its preset.
    const bool returned = end.vote_passed && end.verdict.consent != reject_preset().consent;
    if (returned && consented(end.verdict)) return StepResult::kTorn;
    return end.vote_entered && !returned ? StepResult::kUndecided : StepResult::kFailed;
  }
  if (consented(end.verdict))
    return consented(last_ballot(end)) ? StepResult::kCommitted : StepResult::kTorn;
  const bool same_stamps = static_cast<uint64_t>(end.verdict.stamp) ==
                           static_cast<uint64_t>(end.world) * static_cast<uint64_t>(end.stamp);
  // A rank with an error of its own adds to neither count.
  const bool all_well = end.verdict.consent + end.verdict.nonfinite == end.world;
  return same_stamps && all_well && end.verdict.nonfinite > 0 ? StepResult::kSkipped
                                                              : StepResult::kRejected;
}

}  // namespace muonrt
