#pragma once

#include <cfenv>

namespace muonrt::host {

/// Default floating-point environment (round to nearest, denormals kept, no traps) from
/// construction to destruction; then the caller's comes back as it was, its exception flags
/// included. New threads inherit their creator's environment, so each of ours makes one of these
/// first. Only calls through a pointer or into another file are sure to stay inside its scope: a
/// compiler may move plain arithmetic across the change.
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
