#pragma once

#include <cstdio>
#include <string>

namespace muonrt::tool {

/// Where the lines go.
struct Screen {
  bool terminal = false;  // rewrites one line with carriage returns; else prints whole lines
  int width = 80;         // columns of the terminal
};

/// Looks at what `out` is: a terminal (unless TERM is "dumb") or a file or pipe.
Screen detect_screen(std::FILE* out);

/// What long work is at: one line that is written over in a terminal; a line for each call in a
/// log file. Threads: one.
class StatusLine {
 public:
  StatusLine(std::FILE* out, Screen screen) : out_(out), screen_(screen) {}
  const Screen& screen() const { return screen_; }
  void show(const std::string& text);
  /// Takes the line away, before something else is printed.
  void clear();
  /// The line stays.
  void keep();

 private:
  void write(const std::string& text);

  std::FILE* out_;
  Screen screen_;
  size_t shown_ = 0;  // columns in use on the terminal's line
};

}  // namespace muonrt::tool
