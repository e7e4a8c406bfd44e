#pragma once

#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

#include "show/status_line.hpp"

namespace muonrt::train {

/// What a run has to say after a step; NaN where there is nothing (yet).
struct ProgressReport {
  int64_t step = 0;  // steps done
  double train_loss = std::numeric_limits<double>::quiet_NaN();
  double val_loss = std::numeric_limits<double>::quiet_NaN();      // the last one measured
  double optimizer_ms = std::numeric_limits<double>::quiet_NaN();  // of this step
  double exposed_ms =
      std::numeric_limits<double>::quiet_NaN();  // of it, beside local work and products
};

struct ProgressOptions {
  std::string label;            // "muon", "adamw 2/3"
  int64_t steps = 0;            // of this run
  int64_t tokens_per_step = 0;  // of all ranks together
  int64_t later_steps = 0;      // of the runs that follow; counted in the time left
  double line_seconds = 5.0;    // in a log file: a line at most this often (and at the end)
  int64_t first_step = 0;       // of `steps`: done before, by the run that this one resumes
};

using tool::detect_screen;
using tool::Screen;

/// The line without control characters: fields in the order of their weight, those that do not
/// fit into `width` left out whole (0: no limit).
std::string progress_line(const ProgressOptions& options, const ProgressReport& report,
                          double tokens_per_second, double seconds_left, int width);

/// Live progress of one run on one rank. Threads: one.
class Progress {
 public:
  Progress(std::FILE* out, Screen screen, ProgressOptions options);
  /// Ends the line that is being rewritten, if any.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// After each step. `now` is any clock in seconds; the constructor's time counts as 0 for
  /// `update(report)`, which reads the steady clock.
  void update(const ProgressReport& report);
  void update_at(const ProgressReport& report, double now);

  /// A full line of text between progress lines.
  void message(const std::string& line);

  /// The last report as a line that stays. Further calls do nothing.
  void finish();

 private:
  std::string line() const;

  tool::StatusLine line_;
  ProgressOptions options_;
  ProgressReport last_;
  double started_;
  int64_t first_step_ = -1;  // of the first report; -1 before it
  double last_time_ = 0.0;
  double shown_time_ = -1e30;
  int64_t shown_step_ = -1;
  double step_seconds_ = std::numeric_limits<double>::quiet_NaN();
  bool finished_ = false;
};

}  // namespace muonrt::train
