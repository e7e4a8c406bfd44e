#include "simulation/scheduler.hpp"

#include <cxxabi.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace simulation {

namespace {

constexpr size_t kStackBytes = 256 << 10, kGuardBytes = 4096;
constexpr int64_t kMaxSteps = 20'000'000;  // limit for one world
constexpr int64_t kLongest = 100'000 * kSecond;

std::vector<void*>& free_stacks() {
  static std::vector<void*> all;
  return all;
}

void* take_stack() {
  auto& stacks = free_stacks();
  if (!stacks.empty()) {
    void* const out = stacks.back();
    stacks.pop_back();
    return out;
  }
  void* const out = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (out == MAP_FAILED || mprotect(out, kGuardBytes, PROT_NONE) != 0) std::abort();
  return out;
}

}  // namespace

Scheduler* Scheduler::current_ = nullptr;

Scheduler::Scheduler(uint64_t seed, bool prints)
    : random_(seed), prints_(prints), preemption_(int64_t{1} << random_.below(8)) {}

// The stack of a killed fiber is not reused, because lists may contain objects on it.
Scheduler::~Scheduler() {
  for (const auto& f : fibers_) {
    if (f->state == Fiber::State::kEnded && f->stack) free_stacks().push_back(f->stack);
  }
}

void Scheduler::add_line(const std::string& line) {
  for (const char c : line) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  hash_ = (hash_ ^ static_cast<uint64_t>(now_)) * 0x100000001b3ull;
  hash_ = (hash_ ^ static_cast<uint64_t>(fiber() + 1)) * 0x100000001b3ull;
  if (!prints_) return;
  std::printf("%14.6f ms  ", static_cast<double>(now_ - 1000 * kSecond) / 1e6);
  if (in_event_ || !running_)
    std::printf("network ");
  else
    std::printf("%d.%-6d", process(), fiber());
  std::printf("%s\n", line.c_str());
}

void Scheduler::fail(const std::string& problem) {
  log("PROBLEM: ", problem);
  if (problem_.empty()) problem_ = problem;
  if (!running_) return;
  switch_to(nullptr);
}

void Scheduler::start() {
  Fiber* const self = current_->running_;
  self->body(self->argument);
  Scheduler& s = get();
  s.log("the thread ends");
  self->state = Fiber::State::kEnded;
  s.wake(self);
  s.running_ = nullptr;
  s.switch_to(s.next());
}

int Scheduler::spawn(int process, void* (*body)(void*), void* argument) {
  auto fiber = std::make_unique<Fiber>();
  fiber->number = static_cast<int>(fibers_.size());
  fiber->process = process;
  fiber->body = body;
  fiber->argument = argument;
  fiber->stack = take_stack();
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = static_cast<char*>(fiber->stack) + kGuardBytes;
  fiber->context.uc_stack.ss_size = kStackBytes - kGuardBytes;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, &Scheduler::start, 0);
  log("starts thread ", fiber->number, " of process ", process);
  ready_.push_back(fiber.get());
  fibers_.push_back(std::move(fiber));
  return fibers_.back()->number;
}

void Scheduler::join(int number) {
  Fiber* const fiber = fibers_[static_cast<size_t>(number)].get();
  while (fiber->state != Fiber::State::kEnded) wait(fiber);
}

void Scheduler::switch_to(Fiber* to) {
  Fiber* const from = running_;
  if (to == from && from) return;
  void* const globals = abi::__cxa_get_globals();
  ucontext_t unused;
  if (from) {
    from->saved_errno = errno;
    std::memcpy(from->exceptions, globals, sizeof from->exceptions);
  }
  running_ = to;
  if (to) {
    std::memcpy(globals, to->exceptions, sizeof to->exceptions);
  } else {
    std::memset(globals, 0, sizeof from->exceptions);
  }
  swapcontext(from ? &from->context : &unused, to ? &to->context : &outside_);
  errno = running_->saved_errno;
}

std::string Scheduler::run(int process, const std::function<void()>& main) {
  const auto body = [](void* function) -> void* {
    (*static_cast<const std::function<void()>*>(function))();
    return nullptr;
  };
  current_ = this;
  spawn(process, body, const_cast<std::function<void()>*>(&main));
  if (Fiber* const first = next()) {
    running_ = first;
    swapcontext(&outside_, &first->context);
  }
  running_ = nullptr;
  current_ = nullptr;
  return problem_;
}

void Scheduler::wake_at_time() {
  for (size_t i = 0; i < waiting_.size();) {
    Fiber* const f = waiting_[i];
    if (f->until > now_) {
      ++i;
      continue;
    }
    f->state = Fiber::State::kReady;
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
    ready_.push_back(f);
  }
}

/// Returns the fiber to run next, or null if the world ends.
Fiber* Scheduler::next() {
  while (true) {
    while (!events_.empty() && events_.begin()->first <= now_) {
      const auto event = std::move(events_.begin()->second);
      events_.erase(events_.begin());
      in_event_ = true;
      event();
      in_event_ = false;
    }
    if (!problem_.empty()) return nullptr;
    wake_at_time();
    if (!ready_.empty()) {
      const auto i = static_cast<size_t>(random_.below(static_cast<int64_t>(ready_.size())));
      Fiber* const out = ready_[i];
      ready_[i] = ready_.back();
      ready_.pop_back();
      now_ += random_.below(2 * kMicrosecond);
      return out;
    }
    if (waiting_.empty()) return nullptr;
    int64_t time = events_.empty() ? kNever : events_.begin()->first;
    for (const Fiber* f : waiting_) time = std::min(time, f->until);
    if (time == kNever || time > kLongest || ++steps_ > kMaxSteps) {
      std::string who;
      for (const Fiber* f : waiting_)
        who += muonrt::cat(who.empty() ? "" : ", ", f->number, " of process ", f->process);
      fail(muonrt::cat("hang: these threads wait forever: ", who));
      return nullptr;
    }
    now_ = std::max(now_, time);
  }
}

void Scheduler::schedule() {
  if (++steps_ > kMaxSteps) fail("hang: the world does not end");
  switch_to(next());
}

void Scheduler::yield() {
  ready_.push_back(running_);
  schedule();
}

void Scheduler::preempt() {
  if (random_.one_in(preemption_)) yield();
}

bool Scheduler::wait(const void* key, int64_t until) {
  Fiber* const self = running_;
  self->state = Fiber::State::kWaiting;
  self->key = key;
  self->until = until;
  self->woken = false;
  waiting_.push_back(self);
  schedule();
  return self->woken;
}

void Scheduler::wake(const void* key, bool all) {
  std::vector<size_t> found;
  for (size_t i = 0; i < waiting_.size(); ++i) {
    if (waiting_[i]->key == key) found.push_back(i);
  }
  if (!all && found.size() > 1) {
    found = {random_.one_of(found)};
  }
  for (auto i = found.rbegin(); i != found.rend(); ++i) {
    Fiber* const f = waiting_[*i];
    f->woken = true;
    f->state = Fiber::State::kReady;
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(*i));
    ready_.push_back(f);
  }
}

bool Scheduler::try_lock(const void* mutex) { return owners_.emplace(mutex, running_).second; }

void Scheduler::lock(const void* mutex) {
  preempt();
  while (!try_lock(mutex)) {
    if (owners_[mutex] == running_) fail("hang: a thread locks a mutex that it has locked");
    running_->locks = true;
    wait(mutex);
    running_->locks = false;
  }
}

void Scheduler::unlock(const void* mutex) {
  owners_.erase(mutex);
  wake(mutex);
}

void Scheduler::kill(int process) {
  log("process ", process, " is killed");
  const auto its = [&](const Fiber* f) { return f->process == process; };
  std::erase_if(ready_, its);
  std::erase_if(waiting_, its);
  // The killed process was inside a system function, so the objects that the process has locked are
  // consistent.
  std::erase_if(owners_, [&](const auto& owner) { return its(owner.second); });
  std::vector<const void*> free;
  for (const Fiber* f : waiting_) {
    if (f->locks && !owners_.contains(f->key)) free.push_back(f->key);
  }
  for (const void* mutex : free) wake(mutex);
  for (const auto& f : fibers_) {
    if (!its(f.get()) || f->state == Fiber::State::kEnded) continue;
    f->state = Fiber::State::kEnded;
    f->stack = nullptr;
    wake(f.get());
  }
  if (running_ && its(running_)) {
    running_ = nullptr;
    in_event_ = false;
    switch_to(next());
  }
}

void Scheduler::at_step(int process, int64_t steps, std::function<void()> event) {
  at_steps_[{process, steps_of_[process] + steps}] = std::move(event);
}

void Scheduler::step() {
  if (!running_) return;
  const auto found = at_steps_.find({process(), ++steps_of_[process()]});
  if (found == at_steps_.end()) return;
  const auto event = std::move(found->second);
  at_steps_.erase(found);
  event();
}

int Scheduler::fibers_of(int process) const {
  return static_cast<int>(std::count_if(fibers_.begin(), fibers_.end(), [&](const auto& f) {
    return f->process == process && f->state != Fiber::State::kEnded;
  }));
}

}  // namespace simulation
