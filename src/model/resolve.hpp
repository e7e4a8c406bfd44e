#pragma once

#include <span>
#include <vector>

#include "model/exchange.hpp"
#include "model/recording.hpp"
#include "model/simulate.hpp"
#include "plan/machine/profile.hpp"

namespace muonrt {

/// Computes when the operations of all ranks run. If the ranks of a host share its cores, a copy
/// inside a node occupies a core of the receiver, and all active streams of a node share its cores
/// and its memory bandwidth. A timestamp receives the nanoseconds since the start of the step plus
/// 1, because 0 marks a span that has not run.
/// @param exchange  Computes the times of all exchanges that are not copies on shared cores.
/// Errors: INTERNAL if a rank waits forever, or if sender and receiver of a message do not record
/// the same size.
std::vector<RankTimes> resolve(std::span<const RankRecording* const> ranks,
                               const MachineProfile& profile, int world,
                               const ExchangeModel& exchange);

}  // namespace muonrt
