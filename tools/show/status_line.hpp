#pragma once

#include <cstdio>
#include <string>

namespace muonrt::tool {

/// The stream that status lines are written to.
struct Screen {
  bool terminal = false;  // whether one line is rewritten, or whole lines are printed
  int width = 80;         // columns of the terminal
};

/// Detects whether `out` is a terminal, and its width, which COLUMNS overrides. If TERM is "dumb",
/// `out` does not count as a terminal.
Screen detect_screen(std::FILE* out);

/// Shows the progress of a long-running operation. On a terminal, overwrites a single line; in a
/// log file, prints a line for each call. Threads: one.
class StatusLine {
 public:
  StatusLine(std::FILE* out, Screen screen) : out_(out), screen_(screen) {}
  const Screen& screen() const { return screen_; }
  /// @param text  truncated to the width of a terminal.
  void show(const std::string& text);
  /// Removes the line. Call this function before you print anything else.
  void clear();
  /// Keeps the line, so that the next output appears below it.
  void keep();

 private:
  void write(const std::string& text);

  std::FILE* out_;
  Screen screen_;
  size_t shown_ = 0;  // number of columns in use on the terminal's line
};

}  // namespace muonrt::tool
