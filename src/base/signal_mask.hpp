#pragma once

#include <signal.h>

#include <initializer_list>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.hpp"

namespace muonrt {

/// Blocks signals in the calling thread while this object exists. Threads that are started during
/// this time inherit the mask, so signal handlers run only on the program's own threads. SIGABRT
/// and faults such as SIGSEGV are not blocked, because the thread that causes them must handle
/// them.
class SignalMask {
 public:
  SignalMask() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT})
      sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &saved_);
  }
  ~SignalMask() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
  SignalMask(const SignalMask&) = delete;
  SignalMask& operator=(const SignalMask&) = delete;

 private:
  sigset_t saved_;
};

/// Starts a thread of the library with signals blocked; see SignalMask.
/// @param what  Purpose of the thread for the error message, such as "a stream".
/// Errors: OUT_OF_MEMORY if the system cannot create a thread.
template <class Body>
std::thread start_thread(const char* what, Body body) {
  const SignalMask mask;
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw make_error(Status::kOutOfMemory, "cannot start a thread for ", what, ": ", error.what(),
                     "; raise the limit of threads");
  }
}

}  // namespace muonrt
