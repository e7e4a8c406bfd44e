#pragma once

#include <cfenv>

namespace muonrt::host {

/// Sets the default floating-point environment: round to nearest, no flush to zero, no traps. The
/// destructor restores the caller's environment, including the exception flags. A new thread
/// inherits the environment of the thread that creates it, so each thread of the library first
/// creates an object of this class.
///
/// A compiler may move arithmetic across the change of the environment. To prevent this, put the
/// arithmetic into a function that is called through a pointer or is defined in another file.
class FpEnvironment {
 public:
  FpEnvironment() {
    std::fegetenv(&saved_);
    // In glibc and musl, this also clears flush-to-zero and denormals-are-zero.
    std::fesetenv(FE_DFL_ENV);
  }
  ~FpEnvironment() { std::fesetenv(&saved_); }
  FpEnvironment(const FpEnvironment&) = delete;
  FpEnvironment& operator=(const FpEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

}  // namespace muonrt::host
