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
  double begin;  // time when its stream reaches the exchange
  const RecordedExchange* exchange;
};

/// Computes the time at which each member has finished an exchange.
/// @param ended  One entry for each member. The caller sets it to the member's `begin`.
using ExchangeModel =
    std::function<void(std::span<const ExchangeMember> members, std::span<double> ended)>;

/// Models an exchange by the links of the ranks:
/// * A member's messages begin after the latency of an exchange and the time to set up each
///   message. If a member has no messages to other ranks, the latency of a pass over memory applies
///   instead.
/// * The messages of a link share its rate equally. While a link moves a message, it moves the same
///   number of bytes of every larger message, and all bytes of every smaller one. A message is
///   complete when the slower of its two links has moved it.
/// * On the host, a rank copies its message to itself before all others.
/// * If a peer of a member is not simulated, the member finishes together with the slowest member.
ExchangeModel exchange_by_rank(const MachineProfile& profile);

/// Returns 0 if both ranks are in one node, 1 otherwise.
size_t link_of(const MachineProfile& profile, int32_t a, int32_t b);

/// Returns the seconds for copying a rank's message to itself. The messages were packed just
/// before, so they are in the caches if the messages of all ranks in the node fit there.
double own_copy_seconds(const MachineProfile& profile, int32_t rank, const RecordedExchange& x);

/// Returns the seconds of a reduction over all ranks, modelled as a pass up and a pass down a tree.
double reduce_seconds(const MachineProfile& profile, int64_t bytes, int world);

/// Checks that `messages`, the messages of `peer`, include one of `bytes` bytes to or from `rank`.
/// Errors: INTERNAL.
void require_message(const std::vector<PeerBytes>& messages, int32_t rank, int32_t peer,
                     int64_t bytes);

}  // namespace muonrt
