#include "comm/flight_recorder.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace muonrt {

void FlightRecorder::begin(const Operation& operation, const Traffic& traffic) {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  ring_[static_cast<size_t>(count_ % kCapacity)] = {operation, traffic, State::kRunning, now, now};
  ++count_;
}

void FlightRecorder::end(bool failed) {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  if (count_ == 0) return;
  Entry& entry = ring_[static_cast<size_t>((count_ - 1) % kCapacity)];
  entry.state = failed ? State::kFailed : State::kDone;
  entry.end = now;
}

std::string FlightRecorder::text(int64_t count) const {
  const std::lock_guard lock(mutex_);
  std::string out;
  for (int64_t i = std::max<int64_t>(0, count_ - std::min(count, kCapacity)); i < count_; ++i) {
    const Entry& e = ring_[static_cast<size_t>(i % kCapacity)];
    const bool running = e.state == State::kRunning;
    const auto took = (running ? Clock::now() : e.end) - e.begin;
    const int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(took).count();
    if (!out.empty()) out += "; ";
    out += cat("#", e.operation.sequence, ' ', name_of(e.operation.kind),
               running                   ? " running since "
               : e.state == State::kDone ? " done in "
                                         : " failed after ",
               ms, " ms (", e.traffic.sends, " out ", e.traffic.bytes_out, " B, ",
               e.traffic.receives, " in ", e.traffic.bytes_in, " B)");
  }
  return out;
}

}  // namespace muonrt
