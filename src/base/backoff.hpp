#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>

#include "base/deadline.hpp"
#include "base/error.hpp"

namespace muonrt {

/// The pauses of a wait that looks again and again: without sleep at first, then with sleeps that
/// double.
class Backoff {
 public:
  using Duration = Deadline::Clock::duration;
  /// @param spin  time without sleep.
  /// @param first, most  the first sleep and the longest.
  Backoff(Duration spin, Duration first, Duration most) : spin_(spin), first_(first), most_(most) {}

  void pause() { pause(Deadline::Clock::time_point::max()); }
  /// Sleeps no longer than to `end`.
  void pause(Deadline::Clock::time_point end) {
    const auto now = Deadline::Clock::now();
    if (now - began_ < spin_) return std::this_thread::yield();
    std::this_thread::sleep_for(std::min(sleep_, end - now));
    sleep_ = std::min(2 * sleep_, most_);
  }
  /// Something has come: begins again.
  void reset() {
    began_ = Deadline::Clock::now();
    sleep_ = first_;
  }

 private:
  const Duration spin_, first_, most_;
  Deadline::Clock::time_point began_ = Deadline::Clock::now();
  Duration sleep_ = first_;
};

/// Runs `work`; where it finds no memory, again and again for a second from then on, or until
/// `deadline`.
template <class Work>
auto retry_while_out_of_memory(Deadline deadline, const Work& work) {
  std::optional<Deadline> enough;
  using std::chrono::milliseconds;
  for (Backoff pauses(milliseconds(0), milliseconds(1), milliseconds(50));;
       pauses.pause(deadline.at())) {
    try {
      return work();
    } catch (const std::exception&) {
      const Error error = current_error();
      const bool lacks = error.status() == Status::kOutOfMemory && !error.is_remote();
      if (!enough) enough = Deadline::in_ms(1000);
      if (!lacks || enough->passed() || deadline.passed()) throw;
    }
  }
}

}  // namespace muonrt
