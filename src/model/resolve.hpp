#pragma once

#include <span>
#include <vector>

#include "model/exchange.hpp"
#include "model/recording.hpp"
#include "model/simulate.hpp"
#include "plan/machine/profile.hpp"

namespace muonrt {

/// Advances the clocks of all ranks. On a host whose ranks share cores, copies inside a node occupy
/// a core of the receiver, and all streams that work share the cores and the memory of their node.
/// @param exchange  for all other exchanges.
/// Timestamps write nanoseconds since the step began, plus 1, because 0 is the time of a span that
/// has not run.
/// Errors: INTERNAL if a rank waits forever, or if the two ranks of a message disagree about it.
std::vector<RankTimes> resolve(std::span<const RankRecording* const> ranks,
                               const MachineProfile& profile, int world,
                               const ExchangeModel& exchange);

}  // namespace muonrt
