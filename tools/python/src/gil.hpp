/// Handles the global interpreter lock (GIL) in threads that may outlive the interpreter.
#ifndef MUONRT_PYTHON_GIL_HPP
#define MUONRT_PYTHON_GIL_HPP

#include <Python.h>
#include <unistd.h>

#include <exception>
#include <type_traits>

namespace binding {

/// Calls a function that waits for the GIL or runs Python code. While the interpreter is being
/// finalized, Python ends such a thread by unwinding its stack. A noexcept function on the stack,
/// such as a destructor, would then terminate the process. This function makes the thread sleep
/// instead until the process has ended.
template <class Call>
auto or_sleep(const Call& call) {
  // The unwinding cannot be caught inside another handler, but it calls destructors.
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
