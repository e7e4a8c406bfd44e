#pragma once

#include <memory>

#include "comm/thread_faults.hpp"
#include "comm/transport.hpp"

namespace muonrt {

class ThreadChannel;

/// Creates the transports of ranks that are threads of one process. A receiver copies directly from
/// the sender's buffer; an exchange returns after the peers have copied this rank's messages.
/// Threads: any. The transports remain usable after the group has been destroyed.
class ThreadGroup {
 public:
  /// Errors: INVALID_ARGUMENT unless size >= 1.
  explicit ThreadGroup(int size, ThreadFaults faults = {});

  int size() const;

  /// Creates the transport of `rank`. If a rank destroys its transport while a peer waits for a
  /// message from it, the operation of the peer returns COMM. Errors: INVALID_ARGUMENT if `rank` is
  /// out of range or was used before.
  std::unique_ptr<Transport> transport(int rank);

 private:
  std::shared_ptr<ThreadChannel> channel_;
};

}  // namespace muonrt
