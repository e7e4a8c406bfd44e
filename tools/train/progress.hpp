#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "show/status_line.hpp"
#include "train/curve.hpp"

namespace muonrt::train {

/// Shows the progress of one run on one rank: one line that is rewritten on a terminal, or a line
/// every few seconds in a log file, and in both cases the last step. Threads: one.
class Progress {
 public:
  struct Run {
    std::string label;            // "muon"
    int64_t first_step = 0;       // steps of the run that this one resumes
    int64_t steps = 0;            // number of the last step
    int64_t later_steps = 0;      // of the following runs, for the remaining time
    int64_t tokens_per_step = 0;  // of all ranks together
  };
  Progress(std::FILE* out, tool::Screen screen, Run run);
  /// Shows the last step in a line that is not overwritten.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Call it after each step.
  void update(const CurvePoint& point);

 private:
  void show();

  tool::StatusLine line_;
  Run run_;
  CurvePoint last_;  // with the last validation loss
  double shown_ = -1e30;
  int64_t shown_step_ = -1;
};

}  // namespace muonrt::train
