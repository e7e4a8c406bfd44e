#pragma once

#include <functional>
#include <span>
#include <vector>

#include "model/profile.hpp"
#include "model/recording.hpp"
#include "model/simulate.hpp"

namespace muonrt {

/// What the timestamps of a step write.
enum class Clock { kNanoseconds, kBytes, kFlops };

/// A simulated rank in an exchange.
struct ExchangeMember {
  int32_t rank;
  double begin;  // its stream has reached the exchange
  const RecordedExchange* exchange;
};

/// Returns when each member has ended an exchange. @param ended  by member; the begin at first.
using ExchangeModel =
    std::function<void(std::span<const ExchangeMember> members, std::span<double> ended)>;

/// Exchanges by rank. A member needs the latency of an exchange (that of a pass, if it has no
/// message to another rank), and the time of its messages and bytes in the direction that has more;
/// links inside a node and between nodes are used at the same time. It ends when neither itself nor
/// one of its peers has messages left. If not all peers are simulated, it ends with the slowest
/// member.
ExchangeModel exchange_by_rank(const MachineProfile& profile);

/// Advances the clocks of all ranks.
/// Timestamps write `clock`: the time, or what the stream has moved or computed until then.
/// Errors: INTERNAL if a rank waits forever, or if the two ranks of a message disagree about it.
std::vector<RankTimes> resolve(std::span<const RankRecording* const> ranks,
                               const MachineProfile& profile, int world, Clock clock,
                               const ExchangeModel& exchange);

}  // namespace muonrt
