#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>

#include "muonrt/muonrt.hpp"

namespace muonrt::train {

/// The times on a rank's clock, in microseconds, before and after each barrier.
struct ClockReadings {
  static constexpr size_t kBarriers = 8;
  std::array<double, kBarriers> before = {}, after = {};
};

/// The number of microseconds to add to a rank's times to convert them to rank 0's clock. The exact
/// number differs from `offset` by at most `error`.
struct ClockOffset {
  double offset = 0, error = 0;
};

/// Compares the clocks of rank 0 and another rank. No rank leaves a barrier before the other rank
/// enters it, so each barrier bounds the offset from both sides. If an offset of 0 is within the
/// bounds, returns exactly 0, because the ranks then probably share a clock, as on a single host.
ClockOffset compare_clocks(const ClockReadings& root, const ClockReadings& rank);

/// Collects the traces of the last steps of all ranks, on the clock of rank 0. Together, the ranks
/// keep at most 256 MiB, but at least one step.
class StepTrace {
 public:
  static constexpr size_t kSteps = 4;

  /// Adds the trace of the optimizer's last step, and compares the clocks. Collective.
  void add(Comm& comm, const Optimizer& optimizer);
  /// Combines the traces on rank 0, and returns a Chrome trace in which each rank is a process. On
  /// other ranks, returns "". Collective.
  std::string gather(Comm& comm) const;

 private:
  std::deque<std::string> steps_;  // the events of each step, separated by commas
};

}  // namespace muonrt::train
