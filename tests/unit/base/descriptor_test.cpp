#include "base/descriptor.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <utility>

using muonrt::Descriptor;

namespace {

Descriptor null_device() {
  return Descriptor([] { return open("/dev/null", O_RDONLY | O_CLOEXEC); });
}

/// Runs `body` in a forked child.
/// @return The exit code of the child.
template <class Body>
int in_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

bool is_open(int fd) { return fcntl(fd, F_GETFD) != -1; }

}  // namespace

TEST_CASE("descriptor: a forked child has no copy, and the parent keeps its own", "[unit][base]") {
  Descriptor first = null_device(), second = null_device(), moved = std::move(first);
  REQUIRE((moved && second && !first));
  const int fds[] = {moved.fd(), second.fd()};
  CHECK(in_child([&] {
          return (moved ? 1 : 0) + (second ? 2 : 0) + (is_open(fds[0]) ? 4 : 0) +
                 (is_open(fds[1]) ? 8 : 0);
        }) == 0);
  CHECK(is_open(moved.fd()));
  const int given_up = second.release();
  CHECK(in_child([&] { return is_open(given_up) ? 0 : 1; }) == 0);
  close(given_up);
}

TEST_CASE("descriptor: a forked child has neither end of a pair", "[unit][base]") {
  const auto [here, there] = Descriptor::pair(
      [](int(&fds)[2]) { return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0; });
  REQUIRE((here && there && here.fd() != there.fd()));
  const int fds[] = {here.fd(), there.fd()};
  CHECK(in_child([&] { return (is_open(fds[0]) ? 1 : 0) + (is_open(fds[1]) ? 2 : 0); }) == 0);
  CHECK((is_open(fds[0]) && is_open(fds[1])));
  const auto none = Descriptor::pair([](int(&)[2]) { return false; });
  CHECK((!none.first && !none.second));
}

TEST_CASE("descriptor: if open fails, it is empty and errno is kept", "[unit][base]") {
  const Descriptor none([] { return open("/nonexistent/file", O_RDONLY | O_CLOEXEC); });
  const int reason = errno;
  CHECK_FALSE(none);
  CHECK(reason == ENOENT);
}

// Rank 0 may fork a worker process while ranks connect. If rank 0 then dies, the other ranks must
// detect it immediately, although the worker still runs.
TEST_CASE("descriptor: a connection ends with its process even if a child still runs",
          "[unit][base]") {
  int ends[2], worker[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  REQUIRE(pipe2(worker, O_CLOEXEC) == 0);
  const int code = in_child([&] {
    close(ends[0]);
    close(worker[1]);
    const Descriptor connection([&] { return ends[1]; });
    if (fork() == 0) {
      char byte;
      while (read(worker[0], &byte, 1) > 0) continue;  // blocks until the test ends
      _exit(0);
    }
    return 0;  // exits without destructors, like a process that is killed
  });
  CHECK(code == 0);
  close(ends[1]);
  pollfd look = {ends[0], POLLIN, 0};
  CHECK(poll(&look, 1, 10000) == 1);
  char byte;
  CHECK(recv(ends[0], &byte, 1, MSG_DONTWAIT) == 0);
  for (const int fd : {ends[0], worker[0], worker[1]}) close(fd);
}
