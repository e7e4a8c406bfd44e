// Replaces the C library's functions for threads, locks and clocks. The linker uses these
// definitions in the whole program, including libstdc++, so no changes to the code under test are
// needed.

#include <pthread.h>
#include <sched.h>
#include <sys/random.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "simulation/libc.hpp"

using namespace simulation;

namespace {

int64_t to_ns(const timespec& t) {
  if (t.tv_sec > INT64_MAX / kSecond - 1) return kNever;
  return static_cast<int64_t>(t.tv_sec) * kSecond + t.tv_nsec;
}

int wait_on(pthread_cond_t* condition, pthread_mutex_t* mutex, int64_t until) {
  Scheduler& s = Scheduler::get();
  s.step();
  // Simulates spurious wake-ups.
  if (s.random().one_in(64)) until = std::min(until, s.now() + s.random().any_size(kMillisecond));
  const int64_t asked = until;
  s.unlock(mutex);
  const bool woken = s.wait(condition, until);
  s.lock(mutex);
  return woken || s.now() < asked ? 0 : ETIMEDOUT;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  if (!inside()) return SIMULATION_REAL(pthread_mutex_lock)(mutex);
  Scheduler::get().lock(mutex);
  return 0;
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  if (!inside()) return SIMULATION_REAL(pthread_mutex_trylock)(mutex);
  return Scheduler::get().try_lock(mutex) ? 0 : EBUSY;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  if (!inside()) return SIMULATION_REAL(pthread_mutex_unlock)(mutex);
  Scheduler::get().unlock(mutex);
  Scheduler::get().preempt();
  return 0;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  if (!inside()) return SIMULATION_REAL(pthread_cond_wait)(condition, mutex);
  return wait_on(condition, mutex, kNever);
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  if (!inside()) return SIMULATION_REAL(pthread_cond_clockwait)(condition, mutex, clock, until);
  return wait_on(condition, mutex, to_ns(*until));
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* until) {
  if (!inside()) return SIMULATION_REAL(pthread_cond_timedwait)(condition, mutex, until);
  return wait_on(condition, mutex, to_ns(*until));
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  if (!inside()) return SIMULATION_REAL(pthread_cond_signal)(condition);
  Scheduler::get().wake(condition, false);
  return 0;
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  if (!inside()) return SIMULATION_REAL(pthread_cond_broadcast)(condition);
  Scheduler::get().wake(condition);
  return 0;
}

int pthread_cond_destroy(pthread_cond_t* condition) noexcept {
  if (!inside()) return SIMULATION_REAL(pthread_cond_destroy)(condition);
  return 0;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) noexcept {
  if (!inside()) return SIMULATION_REAL(pthread_create)(thread, attributes, body, argument);
  Scheduler& s = enter_system();
  *thread = static_cast<pthread_t>(s.spawn(s.process(), body, argument) + 1);
  return 0;
}

int pthread_join(pthread_t thread, void** result) {
  if (!inside()) return SIMULATION_REAL(pthread_join)(thread, result);
  enter_system().join(static_cast<int>(thread) - 1);
  return 0;
}

int pthread_detach(pthread_t thread) noexcept {
  return inside() ? 0 : SIMULATION_REAL(pthread_detach)(thread);
}

pthread_t pthread_self() noexcept {
  if (!inside()) return SIMULATION_REAL(pthread_self)();
  return static_cast<pthread_t>(Scheduler::get().fiber() + 1);
}

int sched_yield() noexcept {
  if (!inside()) return SIMULATION_REAL(sched_yield)();
  Scheduler::get().step();
  Scheduler::get().yield();
  return 0;
}

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  if (!inside()) return SIMULATION_REAL(clock_gettime)(clock, time);
  Scheduler& s = Scheduler::get();
  s.advance(50);
  *time = {s.now() / kSecond, s.now() % kSecond};
  return 0;
}

int nanosleep(const timespec* duration, timespec* rest) {
  if (!inside()) return SIMULATION_REAL(nanosleep)(duration, rest);
  Scheduler& s = Scheduler::get();
  s.step();
  s.sleep_until(s.now() + to_ns(*duration));
  return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* rest) {
  if (!inside()) return SIMULATION_REAL(clock_nanosleep)(clock, flags, time, rest);
  Scheduler& s = Scheduler::get();
  s.step();
  s.sleep_until((flags & TIMER_ABSTIME ? 0 : s.now()) + to_ns(*time));
  return 0;
}

ssize_t getrandom(void* out, size_t bytes, unsigned flags) {
  if (!inside()) return SIMULATION_REAL(getrandom)(out, bytes, flags);
  for (size_t i = 0; i < bytes; ++i)
    static_cast<unsigned char*>(out)[i] =
        static_cast<unsigned char>(Scheduler::get().random().next());
  return static_cast<ssize_t>(bytes);
}

}  // extern "C"
#pragma GCC visibility pop
