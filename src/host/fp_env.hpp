#pragma once

#include <cfenv>

namespace muonrt::host {

/// Sets the default floating-point environment (round to nearest, no flush to zero, no traps) until
/// its destruction, which restores the caller's environment including the exception flags. New
/// threads inherit the environment of their creator, so each of our threads creates one of these
/// first. A compiler may move arithmetic across the change of the environment, so use it around
/// calls through a pointer or into another file.
class FpEnvironment {
 public:
  FpEnvironment() {
    std::fegetenv(&saved_);
    // In glibc and musl this clears flush-to-zero and denormals-are-zero too.
    std::fesetenv(FE_DFL_ENV);
  }
  ~FpEnvironment() { std::fesetenv(&saved_); }
  FpEnvironment(const FpEnvironment&) = delete;
  FpEnvironment& operator=(const FpEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

}  // namespace muonrt::host
