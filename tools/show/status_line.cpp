#include "show/status_line.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "plan/report/text_table.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

Screen detect_screen(std::FILE* out) {
  Screen screen;
  const int descriptor = fileno(out);
  const char* kind = std::getenv("TERM");
  screen.terminal = isatty(descriptor) != 0 && !(kind && std::strcmp(kind, "dumb") == 0);
  winsize size{};
  if (screen.terminal && ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    screen.width = size.ws_col;
  }
  const char* columns = std::getenv("COLUMNS");
  if (columns && std::atoi(columns) > 0) screen.width = std::atoi(columns);
  return screen;
}

void StatusLine::write(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), out_);
  std::fflush(out_);
}

void StatusLine::show(const std::string& text) {
  if (!screen_.terminal) return write(text + "\n");
  // Leave one column free, because some terminals wrap a line that fills their whole width.
  const std::string line = first_columns(text, static_cast<size_t>(std::max(screen_.width - 1, 1)));
  const size_t columns = columns_of(line);
  write("\r" + line + std::string(shown_ > columns ? shown_ - columns : 0, ' '));
  shown_ = columns;
}

void StatusLine::clear() {
  if (shown_ > 0) write("\r" + std::string(shown_, ' ') + "\r");
  shown_ = 0;
}

void StatusLine::keep() {
  if (screen_.terminal) write("\n");
  shown_ = 0;
}

}  // namespace muonrt::tool
