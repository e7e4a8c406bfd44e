#include "command/stop_signals.hpp"

#include <utility>

namespace muonrt::tool {

namespace {

/// Terminates the process with the signal's default action.
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
    // in nanoseconds, between two checks of `done_`
    constexpr timespec kPollInterval = {0, 50'000'000};
    for (bool asked = false; !done_;) {
      const int number = sigtimedwait(&watched_, nullptr, &kPollInterval);
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
