#pragma once

#include <functional>
#include <span>
#include <vector>

#include "model/profile.hpp"
#include "model/recording.hpp"
#include "model/simulate.hpp"

namespace muonrt {

/// A simulated rank in an exchange.
struct ExchangeMember {
  int32_t rank;
  double begin;  // its stream has reached the exchange
  const RecordedExchange* exchange;
};

/// Returns when each member has ended an exchange. @param ended  by member; the begin at first.
using ExchangeModel =
    std::function<void(std::span<const ExchangeMember> members, std::span<double> ended)>;

/// Exchanges by rank. The messages of a member begin after the latency of an exchange (that of a
/// pass, if it has none to another rank) and the time to set them up. The messages of a link share
/// its rate, so each ends when the slower one of its two links has moved as much as it has, or
/// less, of all others. If not all peers of a member are simulated, it ends with the slowest
/// member.
ExchangeModel exchange_by_rank(const MachineProfile& profile);

/// Advances the clocks of all ranks.
/// Timestamps write nanoseconds since the step began, plus 1, because 0 is the time of a span that
/// has not run.
/// Errors: INTERNAL if a rank waits forever, or if the two ranks of a message disagree about it.
std::vector<RankTimes> resolve(std::span<const RankRecording* const> ranks,
                               const MachineProfile& profile, int world,
                               const ExchangeModel& exchange);

}  // namespace muonrt
