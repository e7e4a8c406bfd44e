#pragma once

#include <chrono>
#include <cstdint>

namespace muonrt {

/// Longest time to wait that may be asked for: 366 days.
constexpr int64_t kMaxTimeoutMs = int64_t{366} * 24 * 3600 * 1000;

/// A point in time after which a wait gives up.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  static Deadline in_ms(int64_t ms) {
    return Deadline(Clock::now() + std::chrono::milliseconds(ms));
  }
  bool passed() const { return Clock::now() >= at_; }
  Clock::time_point at() const { return at_; }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace muonrt
