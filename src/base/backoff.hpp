#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>

#include "base/deadline.hpp"
#include "base/error.hpp"

namespace muonrt {

/// The pauses of a polling loop: it yields at first and then sleeps, each time twice as long up to
/// a limit.
class Backoff {
 public:
  using Duration = Deadline::Clock::duration;
  /// @param spin      time during which it only yields.
  /// @param first     the first sleep.
  /// @param longest   the longest sleep.
  Backoff(Duration spin, Duration first, Duration longest)
      : spin_(spin), first_(first), longest_(longest) {}

  void pause() { pause(Deadline::Clock::time_point::max()); }
  /// Sleeps until `end` at most.
  void pause(Deadline::Clock::time_point end) {
    const auto now = Deadline::Clock::now();
    if (now - began_ < spin_) return std::this_thread::yield();
    std::this_thread::sleep_for(std::min(sleep_, end - now));
    sleep_ = std::min(2 * sleep_, longest_);
  }
  /// Call it after progress: the pauses start again with yields.
  void reset() {
    began_ = Deadline::Clock::now();
    sleep_ = first_;
  }

 private:
  const Duration spin_, first_, longest_;
  Deadline::Clock::time_point began_ = Deadline::Clock::now();
  Duration sleep_ = first_;
};

/// Runs `function`. If it throws OUT_OF_MEMORY that no peer reported, runs it again until it
/// succeeds, for at most one second after the first failure and not after `deadline`.
template <class Function>
auto retry_while_out_of_memory(Deadline deadline, const Function& function) {
  std::optional<Deadline> retry_limit;
  using std::chrono::milliseconds;
  for (Backoff pauses(milliseconds(0), milliseconds(1), milliseconds(50));;
       pauses.pause(deadline.at())) {
    try {
      return function();
    } catch (const std::exception&) {
      const Error error = current_error();
      const bool retryable = error.status() == Status::kOutOfMemory && !error.is_remote();
      if (!retry_limit) retry_limit = Deadline::in_ms(1000);
      if (!retryable || retry_limit->passed() || deadline.passed()) throw;
    }
  }
}

}  // namespace muonrt
