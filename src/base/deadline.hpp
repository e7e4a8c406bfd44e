#pragma once

#include <chrono>
#include <cstdint>

namespace muonrt {

/// The largest timeout that the library accepts: 366 days.
constexpr int64_t kMaxTimeoutMs = int64_t{366} * 24 * 3600 * 1000;

/// The time at which a wait times out.
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

inline double seconds_since(Deadline::Clock::time_point start) {
  return std::chrono::duration<double>(Deadline::Clock::now() - start).count();
}

}  // namespace muonrt
