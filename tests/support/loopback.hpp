#pragma once

#include <netinet/in.h>
#include <unistd.h>

#include <string>

#include "support/folder.hpp"

// Free ports and folders, for tests of the rendezvous.
namespace loopback {

using test_support::Folder;

/// Returns a port that was free when the function checked it.
inline int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  listen(fd, 1);  // the system chooses the port
  sockaddr_in at{};
  socklen_t length = sizeof at;
  getsockname(fd, reinterpret_cast<sockaddr*>(&at), &length);
  close(fd);
  return ntohs(at.sin_port);
}

inline std::string at_port(int port) { return "127.0.0.1:" + std::to_string(port); }

}  // namespace loopback
