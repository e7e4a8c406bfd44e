/// Handles the global interpreter lock (GIL) in threads that may outlive the interpreter.
#ifndef MUONRT_PYTHON_GIL_HPP
#define MUONRT_PYTHON_GIL_HPP

#include <Python.h>
#include <unistd.h>

#include <exception>
#include <type_traits>

namespace binding {

/// Calls a function that waits for the GIL or runs Python code. When the interpreter is being
/// finalized, Python ends a thread in such a function by unwinding its stack. If the stack contains
/// a noexcept function, such as a destructor, unwinding would terminate the process. The thread
/// therefore sleeps here until the process has exited.
template <class Call>
auto or_sleep(const Call& call) {
  // An exception handler cannot stop this unwinding, but a destructor that the unwinding calls can.
  struct Sleep {
    bool unwound = true;
    ~Sleep() {
      while (unwound) pause();
    }
  } sleep;
  try {
    if constexpr (std::is_void_v<decltype(call())>) {
      call();
      sleep.unwound = false;
    } else {
      auto value = call();
      sleep.unwound = false;
      return value;
    }
  } catch (const std::exception&) {
    sleep.unwound = false;
    throw;
  }
}
/// Releases the GIL until the end of the scope.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    or_sleep([&] { PyEval_RestoreThread(state_); });
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* const state_;
};
/// Holds the GIL until the end of the scope, in any thread.
class GilAcquired {
 public:
  GilAcquired() : state_(or_sleep([] { return PyGILState_Ensure(); })) {}
  ~GilAcquired() { PyGILState_Release(state_); }
  GilAcquired(const GilAcquired&) = delete;
  GilAcquired& operator=(const GilAcquired&) = delete;

 private:
  const PyGILState_STATE state_;
};

}  // namespace binding

#endif  // MUONRT_PYTHON_GIL_HPP
