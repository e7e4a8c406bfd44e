#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "show/status_line.hpp"
#include "train/curve.hpp"

namespace muonrt::train {

/// Shows the progress of one run on one rank. On a terminal, rewrites a single line; in a log file,
/// prints a line every few seconds. Always shows the last step. Threads: one.
class Progress {
 public:
  struct Run {
    std::string label;            // for example "muon"
    int64_t first_step = 0;       // number of steps before the run was resumed
    int64_t steps = 0;            // number of the last step
    int64_t later_steps = 0;      // number of steps of the following runs, for the remaining time
    int64_t tokens_per_step = 0;  // number of tokens on all ranks together
  };
  Progress(std::FILE* out, tool::Screen screen, Run run);
  /// Shows the last step. The line is not overwritten.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Shows a step. Call this function after each step.
  void update(const CurvePoint& point);

 private:
  void show();

  tool::StatusLine line_;
  Run run_;
  CurvePoint last_;  // includes the last validation loss
  double shown_ = -1e30;
  int64_t shown_step_ = -1;
};

}  // namespace muonrt::train
