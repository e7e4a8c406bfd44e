#pragma once

#include <string>

namespace muonrt::tool {

/// What long work is at, on stderr: one line that is written over in a terminal; in a log file a
/// line at most every five seconds. Threads: one.
class Progress {
 public:
  /// @param on  false: says nothing (for ranks that leave it to another one).
  explicit Progress(bool on = true);
  ~Progress() { clear(); }
  void show(const std::string& text);
  /// Takes the line away, before something else is printed.
  void clear();

  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  bool on_, terminal_;
  size_t shown_ = 0;  // columns in use
  double last_;
};

}  // namespace muonrt::tool
