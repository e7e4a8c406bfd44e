#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "model/recording.hpp"
#include "plan/machine/profile.hpp"

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
/// less, of all others. On the host, the copy of a rank's message to itself precedes the others. If
/// not all peers of a member are simulated, it ends with the slowest member.
ExchangeModel exchange_by_rank(const MachineProfile& profile);

/// Returns 0 if both ranks are in one node, 1 otherwise.
size_t link_of(const MachineProfile& profile, int32_t a, int32_t b);

/// Seconds of the copy of a rank's message to itself. The messages have just been packed, so the
/// caches hold them if there is room for those of all ranks of the node.
double own_copy_seconds(const MachineProfile& profile, int32_t rank, const RecordedExchange& x);

/// Seconds of a reduction over all ranks: a tree, up and down.
double reduce_seconds(const MachineProfile& profile, int64_t bytes, int world);

/// Errors: INTERNAL unless `messages`, those of `peer`, has one of these bytes with `rank`.
void require_message(const std::vector<PeerBytes>& messages, int32_t rank, int32_t peer,
                     int64_t bytes);

}  // namespace muonrt
