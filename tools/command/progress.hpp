#pragma once

#include <chrono>
#include <string>

#include "show/status_line.hpp"

namespace muonrt::tool {

/// What long work is at, on stderr; in a log file a line at most every five seconds. Threads: one.
class Progress {
 public:
  /// @param on  false: says nothing (for ranks that leave it to another one).
  explicit Progress(bool on = true) : on_(on), line_(stderr, detect_screen(stderr)) {}
  ~Progress() { clear(); }
  void show(const std::string& text) {
    const auto now = Clock::now();
    if (!on_ || (!line_.screen().terminal && now - last_ < std::chrono::seconds(5))) return;
    line_.show(text);
    last_ = now;
  }
  /// Takes the line away, before something else is printed.
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
