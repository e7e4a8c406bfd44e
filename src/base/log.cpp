#include "base/log.hpp"

#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "base/error.hpp"

namespace muonrt {

namespace {

struct Log {
  std::mutex mutex;  // locked while `function` runs
  LogFunction function;
  const pid_t process = getpid();
};

std::atomic<int32_t> level_limit = 0;
// The log is never freed, because other threads may log while the process exits.
std::atomic<Log*> current = nullptr;
thread_local bool is_inside = false;

/// Returns the log of this process. A forked child gets a new log: another thread of the parent may
/// have held the mutex of the old one during the fork.
Log& own_log() {
  Log* found = current.load();
  while (!found || found->process != getpid()) {
    auto made = std::make_unique<Log>();
    if (current.compare_exchange_strong(found, made.get())) return *made.release();
  }
  return *found;
}

}  // namespace

void set_log(LogFunction function, LogLevel level) {
  MUONRT_REQUIRE(!is_inside, Status::kInvalidState,
                 "muonrt_set_log: it was called inside the log function; call it outside");
  Log& log = own_log();
  const std::lock_guard lock(log.mutex);
  level_limit.store(function ? static_cast<int32_t>(level) : 0, std::memory_order_relaxed);
  log.function = std::move(function);
}

bool is_logged(LogLevel level) noexcept {
  return static_cast<int32_t>(level) <= level_limit.load(std::memory_order_relaxed);
}

void write_log(LogLevel level, const std::string& message) noexcept {
  Log* const log = current.load();
  if (is_inside || !log || log->process != getpid()) return;
  const std::lock_guard lock(log->mutex);
  // The function or level may have changed since the caller checked.
  if (!log->function || !is_logged(level)) return;
  is_inside = true;
  try {
    log->function(level, message.c_str());
  } catch (...) {  // Exceptions of a log function must not affect the library.
  }
  is_inside = false;
}

}  // namespace muonrt
