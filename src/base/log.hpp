#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace muonrt {

/// The values of enum muonrt_log_level.
enum class LogLevel : int32_t { kOff = 0, kError = 1, kWarning = 2, kInfo = 3, kDebug = 4 };

/// Receives the messages, one at a time, on the threads that log them.
using LogFunction = std::function<void(LogLevel level, const char* message)>;

/// Sets the function of this process and the highest level that it receives. Waits for calls of the
/// previous function; afterwards it is not called again. Threads: any.
/// Errors: INVALID_STATE inside a log function.
void set_log(LogFunction function, LogLevel level);

/// Whether messages of this level are logged.
bool is_logged(LogLevel level) noexcept;

/// Passes the message to the function of this process. Does nothing inside a log function, and in a
/// forked child until it calls set_log().
void write_log(LogLevel level, const std::string& message) noexcept;

/// Logs the message that `make_message` returns; if messages of this level are not logged, it is
/// not called. If there is no memory for the message, it is lost. Threads: any. The caller may
/// hold locks, because log functions must not call muonrt.
template <class Function>
void log(LogLevel level, const Function& make_message) noexcept {
  if (!is_logged(level)) return;
  try {
    write_log(level, make_message());
  } catch (...) {  // no memory for the message
  }
}

}  // namespace muonrt
