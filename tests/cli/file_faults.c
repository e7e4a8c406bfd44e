/* Loaded before the libraries of a program. Of its calls that change files for good, number KILL_AT
   ends it, as SIGKILL does; a write that it is killed in has written a half. Number FAIL_AT fails.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

enum outcome { WELL, FAILS, KILLS };

static enum outcome outcome_of_call(void) {
  static int calls = 0;
  const int call = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
  const char *const kill_at = getenv("KILL_AT"), *const fail_at = getenv("FAIL_AT");
  errno = EIO;
  return kill_at && atoi(kill_at) == call ? KILLS : fail_at && atoi(fail_at) == call ? FAILS : WELL;
}

/* Null where it is to fail. */
static void* next_of(const char* name) {
  const enum outcome outcome = outcome_of_call();
  if (outcome == KILLS) kill(getpid(), SIGKILL);
  return outcome == FAILS ? NULL : dlsym(RTLD_NEXT, name);
}

#pragma GCC visibility push(default)

int rename(const char* from, const char* to) {
  int (*const next)(const char*, const char*) = next_of("rename");
  return next ? next(from, to) : -1;
}

int unlink(const char* path) {
  int (*const next)(const char*) = next_of("unlink");
  return next ? next(path) : -1;
}

int fsync(int file) {
  int (*const next)(int) = next_of("fsync");
  return next ? next(file) : -1;
}

int flock(int file, int how) {
  int (*const next)(int, int) = next_of("flock");
  return next ? next(file, how) : -1;
}

ssize_t write(int file, const void* data, size_t bytes) {
  ssize_t (*const next)(int, const void*, size_t) = dlsym(RTLD_NEXT, "write");
  const enum outcome outcome = outcome_of_call();
  if (outcome == FAILS) return -1;
  const ssize_t wrote = next(file, data, outcome == KILLS ? bytes / 2 : bytes);
  if (outcome == KILLS) kill(getpid(), SIGKILL);
  return wrote;
}

#pragma GCC visibility pop
