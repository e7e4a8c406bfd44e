#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "show/status_line.hpp"
#include "train/curve.hpp"

namespace muonrt::train {

/// Live progress of one run on one rank: a line that is rewritten in a terminal, seldom a line in a
/// log file, and the last step in both. Threads: one.
class Progress {
 public:
  struct Run {
    std::string label;            // "muon"
    int64_t first_step = 0;       // done before, by the run that this one resumes
    int64_t steps = 0;            // the last one's number
    int64_t later_steps = 0;      // of the runs that follow; counted in the time left
    int64_t tokens_per_step = 0;  // of all ranks together
  };
  Progress(std::FILE* out, tool::Screen screen, Run run);
  /// Shows the last step as a line that stays.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// After each step.
  void update(const CurvePoint& point);

 private:
  void show();

  tool::StatusLine line_;
  Run run_;
  CurvePoint last_;  // with the last validation
  double shown_ = -1e30;
  int64_t shown_step_ = -1;
};

}  // namespace muonrt::train
