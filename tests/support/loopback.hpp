#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "support/folder.hpp"

// Free ports and unauthenticated connections, for tests of the rendezvous.
namespace loopback {

inline sockaddr_in address(int port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  out.sin_port = htons(static_cast<uint16_t>(port));
  return out;
}

/// Returns a port that was free when the function checked it.
inline int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at = address(0);
  bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at);
  socklen_t length = sizeof at;
  getsockname(fd, reinterpret_cast<sockaddr*>(&at), &length);
  close(fd);
  return ntohs(at.sin_port);
}

inline std::string at_port(int port) { return "127.0.0.1:" + std::to_string(port); }

/// Connects to `port`, retrying for ten seconds. Returns -1 if no process listens on the port.
inline int connect_to(int port) {
  for (int i = 0; i < 1000; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in to = address(port);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) return fd;
    close(fd);
    usleep(10000);
  }
  return -1;
}

using test_support::Folder;

}  // namespace loopback
