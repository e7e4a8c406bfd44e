#pragma once

#include <chrono>
#include <string>

#include "show/status_line.hpp"

namespace muonrt::tool {

/// Shows the progress of long work on stderr; in a log file, at most one line every five seconds.
/// Threads: one.
class Progress {
 public:
  /// @param on  false to print nothing, on all ranks except one.
  explicit Progress(bool on = true) : on_(on), line_(stderr, detect_screen(stderr)) {}
  ~Progress() { clear(); }
  void show(const std::string& text) {
    const auto now = Clock::now();
    if (!on_ || (!line_.screen().terminal && now - last_ < std::chrono::seconds(5))) return;
    line_.show(text);
    last_ = now;
  }
  /// Removes the line. Call it before printing anything else.
  void clear() { line_.clear(); }

  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  bool on_;
  StatusLine line_;
  Clock::time_point last_ = Clock::now();
};

}  // namespace muonrt::tool
