#include "command/progress.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace muonrt::tool {

namespace {

constexpr double kLineSeconds = 5.0;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool is_terminal() {
  const char* kind = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && kind && std::strcmp(kind, "dumb") != 0;
}

}  // namespace

Progress::Progress(bool on) : on_(on), terminal_(is_terminal()), last_(seconds()) {}

void Progress::show(const std::string& text) {
  if (!on_) return;
  if (terminal_) {
    const std::string blanks(shown_ > text.size() ? shown_ - text.size() : 0, ' ');
    std::fprintf(stderr, "\r%s%s", text.c_str(), blanks.c_str());
    shown_ = text.size();
  } else if (seconds() - last_ >= kLineSeconds) {
    std::fprintf(stderr, "%s\n", text.c_str());
    last_ = seconds();
  }
  std::fflush(stderr);
}

void Progress::clear() {
  if (shown_ == 0) return;
  std::fprintf(stderr, "\r%s\r", std::string(shown_, ' ').c_str());
  std::fflush(stderr);
  shown_ = 0;
}

}  // namespace muonrt::tool
