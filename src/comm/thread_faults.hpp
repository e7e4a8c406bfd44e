#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/operation.hpp"

namespace muonrt {

/// One message between two ranks of a thread group. A collective is carried by messages too, with
/// its own kind.
struct ThreadMessage {
  int32_t channel;  // 0: the group's own; duplicates are numbered as they are made
  OperationKind kind;
  int32_t from, to;      // ranks
  int64_t send_ordinal;  // the sender's operation, counted among those of its kind on this channel
  int64_t receive_ordinal;  // the receiver's
  int64_t bytes;
};

/// What a test lets go wrong in a group of thread ranks; the same in every run. Applies to the
/// group and to all that is duplicated from it, unless a fault names its channel. An operation is
/// named by its kind and its ordinal: 0 is the first of that kind that the rank runs on the
/// channel.
struct ThreadFaults {
  static constexpr int32_t kAny = -1;

  /// The messages that rank `from` sends in an operation are lost; the sender does not notice.
  struct Drop {
    int32_t from = 0;
    OperationKind kind = OperationKind::kExchange;
    int64_t ordinal = 0;
    int32_t to = kAny;
    int32_t channel = kAny;
  };

  /// Rank `rank` throws COMM in place of an operation. Forever: it behaves like a process that has
  /// died; it publishes nothing and all its later operations, on any channel, throw. Otherwise its
  /// error is published like any other.
  struct Kill {
    int32_t rank = 0;
    OperationKind kind = OperationKind::kExchange;
    int64_t ordinal = 0;
    bool forever = true;
    int32_t channel = kAny;
  };

  /// Every message is delivered up to so much later, by a hash of the seed, the pair and the
  /// sender's operation: orders of arrival differ from seed to seed.
  uint64_t seed = 0;
  int64_t max_delay_us = 0;

  std::vector<Drop> drops;
  std::vector<Kill> kills;

  /// Called on the receiver's thread, with no lock held, before and after the bytes are copied. It
  /// may block; the receiver's deadline and published errors are looked at when it has returned.
  std::function<void(const ThreadMessage&)> before_delivery;
  std::function<void(const ThreadMessage&)> after_delivery;
  /// Called on the rank's thread when its part of an operation is complete; not when it
  /// failed.
  std::function<void(int32_t channel, int32_t rank, const Operation&)> after_operation;
};

}  // namespace muonrt
