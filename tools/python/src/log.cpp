#include <condition_variable>
#include <deque>
#include <mutex>

#include "binding.hpp"

namespace binding {
namespace {

/// A queue of messages for the thread of muonrt._log. The library's threads add messages without
/// the GIL, so that neither a thread that holds the GIL nor the shutdown of the interpreter can
/// block them.
class LogQueue {
 public:
  void put(int32_t level, const char* message) {
    const std::lock_guard lock(mutex_);
    if (messages_.size() < kMost) {
      messages_.emplace_back(level, message);
    } else {
      ++lost_;
    }
    changed_.notify_all();
  }
  /// Waits for a message and removes it from the queue. After close(), returns level 0 when the
  /// queue is empty.
  std::pair<int32_t, std::string> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !messages_.empty() || closed_; });
    if (messages_.empty()) return {0, ""};
    std::pair<int32_t, std::string> out = std::move(messages_.front());
    messages_.pop_front();
    if (messages_.empty() && lost_ > 0)
      messages_.emplace_back(MUONRT_LOG_WARNING,
                             cat(std::exchange(lost_, 0), " messages are lost"));
    return out;
  }
  void open(bool is_open) {
    const std::lock_guard lock(mutex_);
    closed_ = !is_open;
    changed_.notify_all();
  }

 private:
  static constexpr size_t kMost = 10'000;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<int32_t, std::string>> messages_;
  int64_t lost_ = 0;
  bool closed_ = false;
};

/// Returns the queue. It is never destroyed, because the library's threads may log while the
/// process exits.
LogQueue& queue() {
  static LogQueue* const out = new LogQueue;
  return *out;
}

void set_log(int32_t level) {
  const auto put = [](void*, enum muonrt_log_level of, const char* message) {
    queue().put(of, message);
  };
  if (level > 0) queue().open(true);
  {
    const GilReleased release;
    check(muonrt_set_log(put, nullptr, static_cast<enum muonrt_log_level>(level)));
  }
  if (level == 0) queue().open(false);
}

}  // namespace

void bind_log(nb::module_& module) {
  module.def(
      "_set_log", &set_log, nb::arg("level"), nb::sig("def _set_log(level: int) -> None"),
      "Sets the level of muonrt's log; see muonrt_log_level. The level 0 turns the log off and\n"
      "closes the queue of messages.");
  module.def(
      "_next_log",
      [] {
        const GilReleased release;
        return queue().take();
      },
      nb::sig("def _next_log() -> tuple[int, str]"),
      "Waits for a message and returns its level and its text. After _set_log(0), returns level\n"
      "0 when the queue is empty.");
}

}  // namespace binding
