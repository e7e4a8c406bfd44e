#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>

#include "muonrt/muonrt.hpp"

namespace muonrt::train {

/// The times of a rank's clock, in microseconds, before and after each of several barriers.
struct ClockReadings {
  static constexpr size_t kBarriers = 8;
  std::array<double, kBarriers> before = {}, after = {};
};

/// The number of microseconds that must be added to a rank's times to get times of rank 0. The true
/// number differs from `offset` by at most `error`.
struct ClockOffset {
  double offset = 0, error = 0;
};

/// Compares the clocks of rank 0 and of another rank. No rank leaves a barrier before the other one
/// enters it, so each barrier limits the offset on both sides. If the offset can be 0, the ranks
/// share a clock, as threads and processes of the same host do, and the result is exactly 0.
ClockOffset compare_clocks(const ClockReadings& root, const ClockReadings& rank);

/// The traces of the last steps of all ranks, on the clock of rank 0. All ranks together keep at
/// most 256 MiB, but at least one step.
class StepTrace {
 public:
  static constexpr size_t kSteps = 4;

  /// Adds the trace of the optimizer's last step, and compares the clocks. Collective.
  void add(Comm& comm, const Optimizer& optimizer);
  /// Joins the traces on rank 0. Returns a Chrome trace whose processes are the ranks, or "" on
  /// other ranks. Collective.
  std::string gather(Comm& comm) const;

 private:
  std::deque<std::string> steps_;  // the events of each step, separated by commas
};

}  // namespace muonrt::train
