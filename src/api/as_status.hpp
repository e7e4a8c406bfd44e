#pragma once

#include <cxxabi.h>

#include <new>
#include <string>

#include "base/peer_status.hpp"
#include "host/fp_env.hpp"
#include "muonrt/inspect.h"

namespace muonrt::api {

/// Sets the message that muonrt_get_last_error() returns in the calling thread.
void set_last_error(const char* message) noexcept;

inline muonrt_status_t report(const Error& error) noexcept {
  set_last_error(error.message().c_str());
  const auto status = static_cast<muonrt_status_t>(error.status());
  return is_error(status) ? status : MUONRT_ERROR_INTERNAL;
}

/// Runs the body of a public function and converts exceptions to statuses. The body runs in the
/// default floating-point environment; afterwards, the caller's environment is restored. If a
/// caller-supplied function terminates the thread (pthread_exit(), cancellation), the thread
/// continues to unwind through this function.
template <class Body>
MUONRT_CATCHES_UNWINDING muonrt_status_t as_status(Body body) {
  const host::FpEnvironment environment;
  try {
    return static_cast<muonrt_status_t>(body());
  } catch (const Error& e) {
    return report(e);
  } catch (const std::bad_alloc&) {
    set_last_error("host memory is exhausted; use fewer or smaller buffers");
    return MUONRT_ERROR_OUT_OF_MEMORY;
  } catch (const std::exception& e) {
    set_last_error(e.what());
    return MUONRT_ERROR_INTERNAL;
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    set_last_error("internal: an exception of unknown type");
    return MUONRT_ERROR_INTERNAL;
  }
}

/// Checks that `pointer` is not null. Errors: INVALID_ARGUMENT, with the function and the argument.
inline void require_pointer(const void* pointer, const char* function, const char* argument) {
  MUONRT_REQUIRE(pointer, Status::kInvalidArgument, function, ": ", argument,
                 " is NULL; pass a valid pointer");
}

/// Returns true if the format is JSON. Errors: INVALID_ARGUMENT if the value is not in the enum.
bool is_json(const enum muonrt_format& format, const char* function);

/// Writes `text` to the caller's buffer and terminates it with a zero. If `capacity` is too small,
/// the text is truncated. `needed` may be null; otherwise it receives the size of the whole text.
void write_text(const std::string& text, char* buffer, int64_t capacity, int64_t* needed);

}  // namespace muonrt::api
