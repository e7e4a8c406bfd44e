/* A library for LD_PRELOAD that counts the calls that change files permanently. Call number KILL_AT
   ends the program like SIGKILL; if the call is a write, it first writes half of its data. Call
   number FAIL_AT fails. From call number FULL_AT on, the disk is full, so writes fail. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum outcome { WELL, FAILS, KILLS };

static int number_in(const char* name) {
  const char* const text = getenv(name);
  return text ? atoi(text) : 0;
}

static enum outcome outcome_of_call(int writes) {
  static int calls = 0;
  const int call = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST), full_at = number_in("FULL_AT");
  errno = EIO;
  if (call == number_in("KILL_AT")) return KILLS;
  if (call == number_in("FAIL_AT")) return FAILS;
  if (!writes || full_at == 0 || call < full_at) return WELL;
  errno = ENOSPC;
  return FAILS;
}

/* Returns the function of the C library, or null if the call must fail. */
static void* next_of(const char* name) {
  const enum outcome outcome = outcome_of_call(0);
  if (outcome == KILLS) kill(getpid(), SIGKILL);
  return outcome == FAILS ? NULL : dlsym(RTLD_NEXT, name);
}

#pragma GCC visibility push(default)

#define CAN_FAIL(name, parameters, arguments)     \
  int name parameters {                           \
    int(*const next) parameters = next_of(#name); \
    return next ? next arguments : -1;            \
  }

CAN_FAIL(rename, (const char* from, const char* to), (from, to))
CAN_FAIL(renameat2,
         (int from_folder, const char* from, int to_folder, const char* to, unsigned how),
         (from_folder, from, to_folder, to, how))
CAN_FAIL(mkdir, (const char* path, mode_t mode), (path, mode))
CAN_FAIL(unlinkat, (int folder, const char* path, int how), (folder, path, how))
CAN_FAIL(remove, (const char* path), (path))
CAN_FAIL(unlink, (const char* path), (path))
CAN_FAIL(fsync, (int file), (file))
CAN_FAIL(flock, (int file, int how), (file, how))

ssize_t write(int file, const void* data, size_t bytes) {
  ssize_t (*const next)(int, const void*, size_t) = dlsym(RTLD_NEXT, "write");
  const enum outcome outcome = outcome_of_call(1);
  if (outcome == FAILS) return -1;
  const ssize_t wrote = next(file, data, outcome == KILLS ? bytes / 2 : bytes);
  if (outcome == KILLS) kill(getpid(), SIGKILL);
  return wrote;
}

ssize_t pwrite(int file, const void* data, size_t bytes, off_t at) {
  ssize_t (*const next)(int, const void*, size_t, off_t) = dlsym(RTLD_NEXT, "pwrite");
  const enum outcome outcome = outcome_of_call(1);
  if (outcome == FAILS) return -1;
  const ssize_t wrote = next(file, data, outcome == KILLS ? bytes / 2 : bytes, at);
  if (outcome == KILLS) kill(getpid(), SIGKILL);
  return wrote;
}

#pragma GCC visibility pop
