#include "command/stop_signals.hpp"

#include <utility>

namespace muonrt::tool {

namespace {

/// As if nobody had waited for the signal.
void end_by(int number) {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  std::raise(number);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
}

}  // namespace

StopSignals::StopSignals(std::function<void(int)> first) {
  sigemptyset(&watched_);
  sigaddset(&watched_, SIGINT);
  sigaddset(&watched_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &watched_, &former_);
  thread_ = std::thread([this, first = std::move(first)] {
    constexpr timespec kLook = {0, 50'000'000};  // ns between looks at `done_`
    for (bool asked = false; !done_;) {
      const int number = sigtimedwait(&watched_, nullptr, &kLook);
      if (number < 0) continue;
      if (asked) end_by(number);
      asked = true;
      first(number);
    }
  });
}

StopSignals::~StopSignals() {
  done_ = true;
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &former_, nullptr);
}

}  // namespace muonrt::tool
