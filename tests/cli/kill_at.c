/* Loaded before the libraries of a program: kills it, as SIGKILL does, before call number KILL_AT
   of those that change files for good; a write that it is killed in has written a half. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

static int is_the_one(void) {
  static int calls = 0;
  const char* const at = getenv("KILL_AT");
  return __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST) == (at ? atoi(at) : 0);
}

static void* next_of(const char* name) {
  if (is_the_one()) kill(getpid(), SIGKILL);
  return dlsym(RTLD_NEXT, name);
}

#pragma GCC visibility push(default)

int rename(const char* from, const char* to) {
  int (*const next)(const char*, const char*) = next_of("rename");
  return next(from, to);
}

int unlink(const char* path) {
  int (*const next)(const char*) = next_of("unlink");
  return next(path);
}

int fsync(int file) {
  int (*const next)(int) = next_of("fsync");
  return next(file);
}

int flock(int file, int how) {
  int (*const next)(int, int) = next_of("flock");
  return next(file, how);
}

ssize_t write(int file, const void* data, size_t bytes) {
  ssize_t (*const next)(int, const void*, size_t) = dlsym(RTLD_NEXT, "write");
  const int ends = is_the_one();
  const ssize_t wrote = next(file, data, ends ? bytes / 2 : bytes);
  if (ends) kill(getpid(), SIGKILL);
  return wrote;
}

#pragma GCC visibility pop
