#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace muonrt {

/// Log levels. The values equal those of enum muonrt_log_level.
enum class LogLevel : int32_t { kOff = 0, kError = 1, kWarning = 2, kInfo = 3, kDebug = 4 };

/// A function that receives log messages. It is called on the thread that logs, and calls do not
/// overlap.
using LogFunction = std::function<void(LogLevel level, const char* message)>;

/// Sets the log function of this process and the least important level that it receives. Waits
/// until running calls of the previous function have returned; that function is not called again.
/// Any thread may call set_log().
/// Errors: INVALID_STATE if it is called inside a log function.
void set_log(LogFunction function, LogLevel level);

/// Returns true if messages of this level are logged.
bool is_logged(LogLevel level) noexcept;

/// Passes the message to the log function of this process. Does nothing inside a log function, or
/// in a forked child that has not called set_log().
void write_log(LogLevel level, const std::string& message) noexcept;

/// Logs the message that `make_message` returns. If messages of this level are not logged, does not
/// call `make_message`. If there is not enough memory for the message, the message is lost. Any
/// thread may call this function, even with locks held, because log functions must not call muonrt.
template <class Function>
void log(LogLevel level, const Function& make_message) noexcept {
  if (!is_logged(level)) return;
  try {
    write_log(level, make_message());
  } catch (...) {  // There was not enough memory for the message.
  }
}

}  // namespace muonrt
