#pragma once

#include <memory>

#include "comm/thread_faults.hpp"
#include "comm/transport.hpp"

namespace muonrt {

class ThreadChannel;

/// Creates transports for ranks that are threads of one process. A receiver copies directly from
/// the sender's buffer, and an exchange returns after the peers have copied this rank's messages.
/// May be used from any thread. The transports remain usable after the group has been destroyed.
class ThreadGroup {
 public:
  /// Errors: INVALID_ARGUMENT if size < 1.
  explicit ThreadGroup(int size, ThreadFaults faults = {});

  int size() const;

  /// Creates the transport of `rank`. If a rank destroys its transport while a peer waits for a
  /// message from that rank, the operation of the peer throws COMM. Errors: INVALID_ARGUMENT if
  /// `rank` is out of range or was used before.
  std::unique_ptr<Transport> transport(int rank);

 private:
  std::shared_ptr<ThreadChannel> channel_;
};

}  // namespace muonrt
