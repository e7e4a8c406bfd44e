#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>

#include "base/deadline.hpp"
#include "base/error.hpp"

namespace muonrt {

/// Waits between the polls of a loop. The first pauses only yield the processor; later pauses
/// sleep. Each sleep is twice as long as the previous one, up to a limit.
class Backoff {
 public:
  using Duration = Deadline::Clock::duration;
  /// @param spin      Time during which pauses only yield.
  /// @param first     Length of the first sleep.
  /// @param longest   Length of the longest sleep.
  Backoff(Duration spin, Duration first, Duration longest)
      : spin_(spin), first_(first), longest_(longest) {}

  void pause() { pause(Deadline::Clock::time_point::max()); }
  /// Like pause(), but does not sleep past `end`.
  void pause(Deadline::Clock::time_point end) {
    const auto now = Deadline::Clock::now();
    if (now - began_ < spin_) return std::this_thread::yield();
    std::this_thread::sleep_for(std::min(sleep_, end - now));
    sleep_ = std::min(2 * sleep_, longest_);
  }
  /// Starts again with pauses that only yield. Call this function after the loop has made progress.
  void reset() {
    began_ = Deadline::Clock::now();
    sleep_ = first_;
  }

 private:
  const Duration spin_, first_, longest_;
  Deadline::Clock::time_point began_ = Deadline::Clock::now();
  Duration sleep_ = first_;
};

/// Calls `function` until it succeeds or throws an error other than OUT_OF_MEMORY on this rank; an
/// OUT_OF_MEMORY that a peer reported is not retried. Stops one second after the first failure, or
/// at `deadline` if that is earlier, and then throws the last error.
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
