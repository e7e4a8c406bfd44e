#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/operation.hpp"

namespace muonrt {

/// A message between two ranks of a thread group. Collectives, too, consist of such messages;
/// `kind` is then the kind of the collective.
struct ThreadMessage {
  int32_t channel;  // 0 is the channel of the group; duplicates are numbered in order of creation
  OperationKind kind;
  int32_t from, to;         // ranks
  int64_t send_ordinal;     // ordinal of the sender's operation; see Operation
  int64_t receive_ordinal;  // ordinal of the receiver's operation
  int64_t bytes;
};

/// Faults that a test injects into a thread group. They are the same in every run. A fault applies
/// to the group and to all duplicates, unless it names a channel. It names an operation by kind and
/// ordinal: ordinal 0 is the first operation of that kind that the rank runs on the channel.
struct ThreadFaults {
  static constexpr int32_t kAny = -1;

  /// Loses the messages that rank `from` sends in an operation. The sender gets no error.
  struct Drop {
    int32_t from = 0;
    OperationKind kind = OperationKind::kExchange;
    int64_t ordinal = 0;
    int32_t to = kAny;
    int32_t channel = kAny;
  };

  /// Makes rank `rank` throw COMM instead of running an operation. If `forever` is false, the rank
  /// publishes this error. If `forever` is true, the rank behaves like a process that has died: it
  /// publishes nothing, and all its later operations on any channel throw.
  struct Kill {
    int32_t rank = 0;
    OperationKind kind = OperationKind::kExchange;
    int64_t ordinal = 0;
    bool forever = true;
    int32_t channel = kAny;
  };

  /// Seed for the delays of messages, which are at most `max_delay_us` microseconds. A delay is a
  /// hash of the seed, the two ranks and the sender's operation, so each seed leads to a different
  /// order of arrival.
  uint64_t seed = 0;
  int64_t max_delay_us = 0;

  std::vector<Drop> drops;
  std::vector<Kill> kills;

  /// Called on the receiver's thread, without a lock, before and after the bytes are copied. Both
  /// functions may block: the receiver checks its deadline and published errors afterwards.
  std::function<void(const ThreadMessage&)> before_delivery;
  std::function<void(const ThreadMessage&)> after_delivery;
  /// Called on the rank's thread after an operation has succeeded.
  std::function<void(int32_t channel, int32_t rank, const Operation&)> after_operation;
};

}  // namespace muonrt
