#pragma once

#include <new>
#include <string>

#include "base/error.hpp"
#include "host/fp_env.hpp"
#include "muonrt/base.h"

namespace muonrt::api {

/// Remembers `message` for this thread's muonrt_last_error.
void set_last_error(const char* message) noexcept;

inline muonrt_status_t report(const Error& error) noexcept {
  set_last_error(error.message().c_str());
  return static_cast<muonrt_status_t>(error.status());
}

/// Every entry point's body runs in here: nothing is thrown across, and the caller's floating-point
/// environment neither changes our bits nor is changed.
template <class Body>
muonrt_status_t as_status(Body body) noexcept {
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
  } catch (...) {
    set_last_error("internal: an exception of unknown type");
    return MUONRT_ERROR_INTERNAL;
  }
}

/// Errors: INVALID_ARGUMENT naming function and argument.
inline void require_pointer(const void* pointer, const char* function, const char* argument) {
  MUONRT_REQUIRE(pointer, Status::kInvalidArgument, function, ": ", argument,
                 " is null; pass a valid pointer");
}

/// Text to a caller's buffer, cut to its capacity and always ended by a zero.
void write_text(const std::string& text, char* buffer, int64_t capacity, int64_t* needed);

}  // namespace muonrt::api
