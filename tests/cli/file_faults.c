/* Loaded before the libraries of a program. Of its calls that change files for good, number KILL_AT
   ends it, as SIGKILL does; a write that it is killed in has written a half. Number FAIL_AT fails.
   From number FULL_AT on the disk is full: writes fail. */
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

/* Null where it is to fail. */
static void* next_of(const char* name) {
  const enum outcome outcome = outcome_of_call(0);
  if (outcome == KILLS) kill(getpid(), SIGKILL);
  return outcome == FAILS ? NULL : dlsym(RTLD_NEXT, name);
}

#pragma GCC visibility push(default)

int rename(const char* from, const char* to) {
  int (*const next)(const char*, const char*) = next_of("rename");
  return next ? next(from, to) : -1;
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned how) {
  int (*const next)(int, const char*, int, const char*, unsigned) = next_of("renameat2");
  return next ? next(from_folder, from, to_folder, to, how) : -1;
}

int mkdir(const char* path, mode_t mode) {
  int (*const next)(const char*, mode_t) = next_of("mkdir");
  return next ? next(path, mode) : -1;
}

int unlinkat(int folder, const char* path, int how) {
  int (*const next)(int, const char*, int) = next_of("unlinkat");
  return next ? next(folder, path, how) : -1;
}

int remove(const char* path) {
  int (*const next)(const char*) = next_of("remove");
  return next ? next(path) : -1;
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
