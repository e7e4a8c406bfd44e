#pragma once

#include <span>
#include <vector>

#include "model/profile.hpp"
#include "model/recording.hpp"
#include "model/simulate.hpp"

namespace muonrt {

/// What the timestamps of a step write.
enum class Clock { kNanoseconds, kBytes, kFlops };

/// Seconds of an exchange of `rank` if no rank is late: its latency, then its messages, one after
/// the other in each direction. Messages inside a node and between nodes run at the same time.
double exchange_seconds(const MachineProfile& profile, int32_t rank,
                        const RecordedExchange& exchange);
/// Seconds of a reduction over `world` ranks.
double reduce_seconds(const MachineProfile& profile, int64_t bytes, int world);

/// Advances the clocks of all ranks. An exchange of a rank begins when its stream reaches it, and
/// ends when neither the rank nor one of its peers has messages left. If not all peers are
/// simulated, it ends with that of the slowest simulated rank.
/// Timestamps write `clock`: the time, or what the stream has moved or computed until then.
/// Errors: INTERNAL if a rank waits forever, or if the two ranks of a message disagree about it.
std::vector<RankTimes> resolve(std::span<const RankRecording* const> ranks,
                               const MachineProfile& profile, int world, Clock clock);

}  // namespace muonrt
