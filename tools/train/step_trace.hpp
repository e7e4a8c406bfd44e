#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>

#include "muonrt/muonrt.hpp"

namespace muonrt::train {

/// Readings of a rank's clock before and after each of several barriers, in microseconds.
struct ClockReadings {
  static constexpr size_t kBarriers = 8;
  std::array<double, kBarriers> before = {}, after = {};
};

/// What must be added to the times of a rank to get those of rank 0, in microseconds. The true
/// value differs by at most `error`.
struct ClockOffset {
  double offset = 0, error = 0;
};

/// Compares the clocks of rank 0 and of another rank. No rank leaves a barrier before the other one
/// enters it, which bounds the offset from both sides. If it may be 0, the ranks share a clock, as
/// threads and processes of a host do, and the result is exactly 0.
ClockOffset compare_clocks(const ClockReadings& root, const ClockReadings& rank);

/// The traces of the last steps of all ranks, on the clock of rank 0. All ranks together keep at
/// most 256 MiB, and at least one step.
class StepTrace {
 public:
  static constexpr size_t kSteps = 4;

  /// Adds the trace of the optimizer's last step, and compares the clocks. Collective.
  void add(Comm& comm, const Optimizer& optimizer);
  /// Joins the traces on rank 0: a Chrome trace, whose processes are the ranks. Other ranks get "".
  /// Collective.
  std::string gather(Comm& comm) const;

 private:
  std::deque<std::string> steps_;  // events, separated by commas
};

}  // namespace muonrt::train
