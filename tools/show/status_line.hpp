#pragma once

#include <cstdio>
#include <string>

namespace muonrt::tool {

/// The output for status lines.
struct Screen {
  bool terminal = false;  // rewrites one line with carriage returns; otherwise prints whole lines
  int width = 80;         // columns of the terminal
};

/// Detects whether `out` is a terminal (unless TERM is "dumb") and its width, which COLUMNS
/// replaces.
Screen detect_screen(std::FILE* out);

/// Shows the status of long work: one line that is overwritten on a terminal, or a line for each
/// call in a log file. Threads: one.
class StatusLine {
 public:
  StatusLine(std::FILE* out, Screen screen) : out_(out), screen_(screen) {}
  const Screen& screen() const { return screen_; }
  /// @param text  cut to the width of a terminal.
  void show(const std::string& text);
  /// Removes the line. Call it before something else is printed.
  void clear();
  /// Keeps the line, so that the next output follows it.
  void keep();

 private:
  void write(const std::string& text);

  std::FILE* out_;
  Screen screen_;
  size_t shown_ = 0;  // columns in use on the terminal's line
};

}  // namespace muonrt::tool
