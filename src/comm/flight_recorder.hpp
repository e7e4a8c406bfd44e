#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "comm/operation.hpp"

namespace muonrt {

/// The amount of data that an operation transfers.
struct Traffic {
  int64_t sends = 0, receives = 0;  // number of messages
  int64_t bytes_out = 0, bytes_in = 0;
};

/// Records the last operations of one rank, so that timeout messages can list them. Only text()
/// allocates. May be used from any thread.
class FlightRecorder {
 public:
  static constexpr int64_t kCapacity = 64;

  void begin(const Operation& operation, const Traffic& traffic);
  /// Marks the most recent operation as finished.
  void end(bool failed);

  /// Describes the last `count` operations, oldest first, for example
  /// "#40 exchange done in 2 ms (1 out 64 B, 1 in 64 B); #41 ...". Returns "" if there were none.
  std::string text(int64_t count = kCapacity) const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { kRunning, kDone, kFailed };
  struct Entry {
    Operation operation;
    Traffic traffic;
    State state;
    Clock::time_point begin, end;
  };

  mutable std::mutex mutex_;
  std::array<Entry, kCapacity> ring_{};
  /// Number of operations that have started; operation i is stored at i % kCapacity.
  int64_t count_ = 0;
};

}  // namespace muonrt
