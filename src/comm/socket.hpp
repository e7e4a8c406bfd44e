#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/error.hpp"

namespace muonrt {

/// Owner of a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket();
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// An address with its length, as the system calls take it.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  void set_port(uint16_t port);
};

/// "errno 111, Connection refused".
std::string errno_text(int error);

/// Addresses of "host:port" or "[::1]:port". Errors: INVALID_ARGUMENT if it is none, COMM if the
/// name is not known. The system's resolver has timeouts of its own.
std::vector<SocketAddress> resolve(const std::string& host_and_port);

/// The address of an interface, given by its name ("eth0") or its address ("10.0.0.5"), of the
/// family asked for. Errors: INVALID_ARGUMENT if this machine has none.
SocketAddress interface_address(const std::string& interface, int family);

/// Listens at `address`, or at its port on `interface`, where that is not empty.
/// Errors: COMM if it is taken or not this machine's.
Socket listen_at(SocketAddress address, const std::string& interface, int backlog);

/// @return  an open connection, or none; then `why` says why. Waits no longer than the deadline.
Socket try_connect(const SocketAddress& address, const std::string& interface, Deadline deadline,
                   std::string& why);

/// A pair of connected ends.
std::pair<Socket, Socket> socket_pair();

/// No delay, keepalive, calls that do not block.
void prepare(const Socket& socket);

/// Waits until one of `events` (poll) or an error is there; false after the deadline.
bool wait_for(int fd, short events, Deadline deadline);

/// Milliseconds for poll: up to the deadline, at most `most`.
int poll_ms(Deadline deadline, int most);

}  // namespace muonrt
