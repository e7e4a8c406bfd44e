#pragma once

#include <memory>

#include "comm/thread_faults.hpp"
#include "comm/transport.hpp"

namespace muonrt {

class ThreadChannel;

/// The meeting place of ranks that are threads of one process. A receiver copies straight from the
/// sender's buffer; an exchange returns when the rank's own messages have been taken.
/// Threads: any. The transports live on when the group is gone.
class ThreadGroup {
 public:
  /// Errors: INVALID_ARGUMENT unless size >= 1.
  explicit ThreadGroup(int size, ThreadFaults faults = {});

  int size() const;

  /// The transport of `rank`. A rank that destroys it while a peer waits for its message ends that
  /// peer's operation with COMM. Errors: INVALID_ARGUMENT for a rank outside of the group, or taken
  /// before.
  std::unique_ptr<Transport> transport(int rank);

 private:
  std::shared_ptr<ThreadChannel> channel_;
};

}  // namespace muonrt
