#include "comm/tcp/socket.hpp"

#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace muonrt {

namespace {

Socket stream_socket(int family) {
  return Socket([&] { return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
}

void turn_on(const Socket& s, int level, int option) {
  const int on = 1;
  setsockopt(s.fd(), level, option, &on, sizeof on);
}

/// Sockets may share a port if all of them set SO_REUSEADDR and none of them listens on it.
void share_port(const Socket& s) { turn_on(s, SOL_SOCKET, SO_REUSEADDR); }

/// @param get  getsockname or getpeername.
SocketAddress address_from(int (*get)(int, sockaddr*, socklen_t*), const Socket& s) {
  sockaddr_storage out{};
  socklen_t length = sizeof out;
  get(s.fd(), reinterpret_cast<sockaddr*>(&out), &length);
  return SocketAddress(reinterpret_cast<sockaddr*>(&out));
}

}  // namespace

std::string errno_text(int error) {
  char buffer[128] = "";
  // This is the GNU variant of strerror_r, which may return a static text instead of using the
  // buffer.
  const char* const text = strerror_r(error, buffer, sizeof buffer);
  return cat("errno ", error, ", ", text);
}

std::vector<Socket> listen_at(const std::vector<SocketAddress>& addresses,
                              const std::string& taken) {
  std::vector<Socket> out;
  std::string problems;
  for (SocketAddress address : addresses) {
    // The system chooses the port of the first listener, and the other listeners use the same port.
    if (address.port() == 0 && !out.empty()) address = address.with_port(address_of(out[0]).port());
    Socket one = stream_socket(address.family());
    if (one) share_port(one);
    const bool good = one && bind(one.fd(), address.get(), address.length()) == 0 &&
                      listen(one.fd(), SOMAXCONN) == 0;
    const int error = good ? 0 : errno;
    problems +=
        good ? "" : cat(problems.empty() ? "" : ", ", address.text(), " (", errno_text(error), ")");
    const bool elsewhere = error == EADDRNOTAVAIL || error == EAFNOSUPPORT;
    // If another program listens at one of the addresses, ranks would connect to that program.
    MUONRT_REQUIRE(good || elsewhere, Status::kComm, "rendezvous: this rank cannot listen at ",
                   problems, "; ", taken);
    if (good) out.push_back(std::move(one));
  }
  MUONRT_REQUIRE(!out.empty(), Status::kComm, "rendezvous: this rank cannot listen at ", problems,
                 "; pass an address of this rank's machine");
  return out;
}

std::vector<Socket> listen_in_range(std::vector<SocketAddress> addresses, PortRange ports) {
  constexpr int kTries = 20;
  const bool any = ports.last == 0;
  const int32_t tries = any ? kTries : ports.last - ports.first + 1;
  const std::string taken = any ? "free a port on this machine"
                                : cat("no port from ", ports.first, " to ", ports.last,
                                      " is free, so pass a larger range of ports");
  for (int32_t i = 0;; ++i) {
    const int32_t port = any ? 0 : ports.first + i;
    for (SocketAddress& a : addresses) a = a.with_port(static_cast<uint16_t>(port));
    try {
      return listen_at(addresses, taken);
    } catch (const Error& error) {  // another program uses the port at one of the addresses
      if (error.status() != Status::kComm || i + 1 >= tries) throw;
    }
  }
}

SocketAddress address_of(const Socket& s) { return address_from(getsockname, s); }
SocketAddress peer_of(const Socket& s) { return address_from(getpeername, s); }

Socket begin_connect(const SocketAddress& address, const SocketAddress& from, std::string& why) {
  Socket out = stream_socket(address.family());
  // The system may choose the port that rank 0 will listen on later.
  if (out) share_port(out);
  if (out && from.family() != 0) {
    // The system then chooses the local port in connect(), where it knows the remote address.
    turn_on(out, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT);
    if (bind(out.fd(), from.get(), from.length()) != 0) {
      why = cat("connecting from ", from.host(), " failed: ", errno_text(errno));
      return Socket();
    }
  }
  if (out && (connect(out.fd(), address.get(), address.length()) == 0 || errno == EINPROGRESS))
    return out;
  why = errno_text(errno);
  return Socket();
}

bool is_connected(const Socket& s, std::string& why) {
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(s.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) {
    why = errno_text(error);
    return false;
  }
  if (address_of(s) != peer_of(s)) return true;
  // The socket is connected to itself: the target port is in the ephemeral range, no process
  // listens on it, and the system has chosen it as the local port. Close it without TIME_WAIT.
  const linger at_once{1, 0};
  setsockopt(s.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  why = "no process listens";
  return false;
}

void prepare(const Socket& s) {
  turn_on(s, IPPROTO_TCP, TCP_NODELAY);
  turn_on(s, SOL_SOCKET, SO_KEEPALIVE);
}

Progress after_error() {
  return errno == EAGAIN || errno == EINTR ? Progress::kBlocked : Progress::kEnded;
}

Progress receive_rest(const Socket& s, void* data, size_t bytes, size_t& got) {
  const ssize_t n = recv(s.fd(), static_cast<char*>(data) + got, bytes - got, MSG_DONTWAIT);
  if (n <= 0) return n < 0 ? after_error() : Progress::kEnded;
  got += static_cast<size_t>(n);
  return got < bytes ? Progress::kBlocked : Progress::kDone;
}

int poll_ms(Deadline deadline, int most) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline.at() - Deadline::Clock::now())
          .count();
  return static_cast<int>(std::clamp<int64_t>(left + 1, 0, most));
}

bool wait_for(int fd, short events, Deadline deadline, const std::function<void()>& check) {
  pollfd look{fd, events, 0};
  while (true) {
    const int ready = poll(&look, 1, poll_ms(deadline, check ? 100 : 1000));
    if (ready > 0) return true;
    if (deadline.passed()) return false;
    if (check) check();
  }
}

}  // namespace muonrt
