#pragma once

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "show/status_line.hpp"

namespace muonrt::tool {

/// Shows the progress of long work on stderr. If stderr is a log file, prints at most one line
/// every five seconds. Threads: one.
class Progress {
 public:
  /// @param on  whether to print anything. Pass true on one rank only.
  explicit Progress(bool on = true) : on_(on), line_(stderr, detect_screen(stderr)) {}
  ~Progress() { clear(); }
  void show(const std::string& text) {
    const auto now = Clock::now();
    if (!on_ || (!line_.screen().terminal && now - last_ < std::chrono::seconds(5))) return;
    line_.show(text);
    last_ = now;
  }
  /// Removes the line. Call this function before you print anything else.
  void clear() { line_.clear(); }

  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  bool on_;
  StatusLine line_;
  Clock::time_point last_ = Clock::now();
};

/// If stderr is a terminal, shows what the command is doing and for how many seconds. The text
/// appears after one second. A separate thread prints it while the caller's thread is busy.
/// Threads: one.
class LongWork {
 public:
  /// @param on  whether to show anything. Pass true on one rank only.
  explicit LongWork(bool on = true)
      : LongWork(on, stderr, detect_screen(stderr), std::chrono::seconds(1)) {}
  LongWork(bool on, std::FILE* out, Screen screen, std::chrono::milliseconds after)
      : after_(after), line_(out, screen) {
    if (on && screen.terminal) thread_ = std::thread([this] { run(); });
  }
  ~LongWork() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
    line_.clear();
  }
  /// Shows `text` while the next part of the work is running.
  void show(std::string text) {
    const std::lock_guard lock(mutex_);
    text_ = std::move(text);
  }
  /// Removes the line until the next show(). Call this function before you print anything else.
  void clear() {
    const std::lock_guard lock(mutex_);
    text_.clear();
    line_.clear();
  }

  LongWork(const LongWork&) = delete;
  LongWork& operator=(const LongWork&) = delete;

 private:
  void run() {
    const auto start = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::milliseconds(200), [this] { return ends_; })) {
      const auto passed = std::chrono::steady_clock::now() - start;
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(passed).count();
      if (passed > after_ && !text_.empty()) line_.show(fmt::format("{} ({} s)", text_, seconds));
    }
  }

  const std::chrono::milliseconds after_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  bool ends_ = false;
  StatusLine line_;
  std::thread thread_;
};

}  // namespace muonrt::tool
