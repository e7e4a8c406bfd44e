#pragma once

#include <ucontext.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/text.hpp"

namespace simulation {

// Times are in nanoseconds of the virtual clock.
constexpr int64_t kNever = INT64_MAX;
constexpr int64_t kMicrosecond = 1000, kMillisecond = 1'000'000, kSecond = 1'000'000'000;

/// Random numbers that depend only on the seed (splitmix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  /// Returns a number from 0 to n - 1.
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t least, int64_t most) { return least + below(most - least + 1); }
  bool one_in(int64_t n) { return below(n) == 0; }
  /// Returns a number from 0 to `most`, of a random order of magnitude.
  int64_t any_size(int64_t most) {
    const int64_t n =
        below(int64_t{2} << below(63 - __builtin_clzll(static_cast<uint64_t>(most)) + 1));
    return n > most ? most : n;
  }
  template <class T>
  const T& one_of(const std::vector<T>& list) {
    return list[static_cast<size_t>(below(static_cast<int64_t>(list.size())))];
  }

 private:
  uint64_t state_;
};

/// A thread of a simulated process.
struct Fiber {
  enum class State { kReady, kWaiting, kEnded };
  int number = 0, process = 0;
  State state = State::kReady;
  const void* key = nullptr;  // the object that it waits for
  int64_t until = kNever;
  bool woken = false;
  bool locks = false;  // waits for a mutex
  void* (*body)(void*) = nullptr;
  void* argument = nullptr;
  ucontext_t context{};
  void* stack = nullptr;
  int saved_errno = 0;
  void* exceptions[2] = {};  // the exceptions that the fiber is handling
};

/// Runs all threads of a world as fibers of one OS thread, one at a time. The seed determines which
/// fiber runs next. If all fibers are waiting, the clock advances to the next event.
class Scheduler {
 public:
  Scheduler(uint64_t seed, bool prints);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Returns the scheduler of the running fiber, or null outside a world.
  static Scheduler* current() { return current_; }
  /// Returns the scheduler of the running fiber; valid only inside a world.
  static Scheduler& get() { return *current_; }

  /// Runs `main` as the first fiber of process `process`, until every fiber has ended. Returns a
  /// description of the problem, or "" if there is none.
  std::string run(int process, const std::function<void()>& main);
  /// Ends the world with this problem. Only the first problem is kept.
  void fail(const std::string& problem);

  int64_t now() const { return now_; }
  void advance(int64_t ns) { now_ += ns; }
  Random& random() { return random_; }
  int process() const { return running_ ? running_->process : -1; }
  int fiber() const { return running_ ? running_->number : -1; }

  int spawn(int process, void* (*body)(void*), void* argument);
  void join(int fiber);
  /// `yield` always lets other fibers run. `preempt` lets them run with this world's preemption
  /// probability.
  void yield();
  void preempt();
  /// Waits until `wake` is called with this key, or until the time `until`. Returns false if the
  /// time `until` has come.
  bool wait(const void* key, int64_t until = kNever);
  void wake(const void* key, bool all = true);
  void sleep_until(int64_t time) { wait(nullptr, time); }
  void at(int64_t time, std::function<void()> event) { events_.emplace(time, std::move(event)); }
  void after(int64_t ns, std::function<void()> event) { at(now_ + ns, std::move(event)); }

  void lock(const void* mutex);
  bool try_lock(const void* mutex);
  void unlock(const void* mutex);

  /// Ends all fibers of a process without running their destructors. Returns only if the running
  /// fiber belongs to another process.
  void kill(int process);
  /// Counts the process's calls to system functions from now on, and calls `event` in call `steps`.
  void at_step(int process, int64_t steps, std::function<void()> event);
  /// Counts a call to a system function.
  void step();
  int fibers_of(int process) const;

  /// Adds an event to the log and to the hash of the log.
  template <class... Parts>
  void log(const Parts&... parts) {
    add_line(muonrt::cat(parts...));
  }
  uint64_t log_hash() const { return hash_; }
  int64_t steps() const { return steps_; }

 private:
  static void start();
  void add_line(const std::string& line);
  void schedule();
  Fiber* next();
  void wake_at_time();
  void switch_to(Fiber* to);

  static Scheduler* current_;
  Random random_;
  const bool prints_;
  const int64_t preemption_;  // preempts in one of this many calls
  int64_t now_ = 1000 * kSecond;
  int64_t steps_ = 0;
  uint64_t hash_ = 0;
  std::string problem_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> ready_, waiting_;
  Fiber* running_ = nullptr;
  bool in_event_ = false;
  ucontext_t outside_{};
  std::multimap<int64_t, std::function<void()>> events_;
  std::unordered_map<const void*, Fiber*> owners_;  // owners of locked mutexes
  std::map<int, int64_t> steps_of_;                 // for each process
  std::map<std::pair<int, int64_t>, std::function<void()>> at_steps_;
};

}  // namespace simulation
