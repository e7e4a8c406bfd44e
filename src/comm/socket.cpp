#include "comm/socket.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace muonrt {

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

void SocketAddress::set_port(uint16_t port) {
  if (family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
  }
}

namespace {

uint16_t port_of(const SocketAddress& address) {
  return ntohs(address.family() == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
}

SocketAddress copy_of(const sockaddr* address, socklen_t length) {
  SocketAddress out;
  std::memcpy(&out.storage, address, length);
  out.length = length;
  return out;
}

std::string number_of(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = "";
  getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

socklen_t length_of(int family) {
  return family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

}  // namespace

std::string errno_text(int error) {
  char buffer[128] = "";
  // The variant that may return a text of its own.
  const char* const text = strerror_r(error, buffer, sizeof buffer);
  return cat("errno ", error, ", ", text);
}

std::vector<SocketAddress> resolve(const std::string& host_and_port) {
  const size_t colon = host_and_port.rfind(':');
  MUONRT_REQUIRE(colon != std::string::npos && colon > 0 && colon + 1 < host_and_port.size(),
                 Status::kInvalidArgument, "rendezvous: address is '", host_and_port,
                 "' (no host and port); write host:port, or [address]:port for IPv6");
  std::string host = host_and_port.substr(0, colon), port = host_and_port.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  const bool number =
      std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
  MUONRT_REQUIRE(number && port.size() <= 5 && std::stoi(port) <= 65535 && std::stoi(port) > 0,
                 Status::kInvalidArgument, "rendezvous: port is '", port,
                 "' (1 to 65535); correct the address '", host_and_port, "'");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int result = getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  MUONRT_REQUIRE(result == 0 && list, Status::kComm, "rendezvous: host '", host, "' is not known (",
                 gai_strerror(result), "); use a name or an address of rank 0");
  std::vector<SocketAddress> out;
  for (const addrinfo* at = list; at; at = at->ai_next) {
    if (at->ai_family == AF_INET || at->ai_family == AF_INET6)
      out.push_back(copy_of(at->ai_addr, at->ai_addrlen));
  }
  freeaddrinfo(list);
  MUONRT_REQUIRE(!out.empty(), Status::kComm, "rendezvous: host '", host,
                 "' has no internet address; use a name or an address of rank 0");
  return out;
}

SocketAddress interface_address(const std::string& interface, int family) {
  ifaddrs* list = nullptr;
  MUONRT_REQUIRE(getifaddrs(&list) == 0, Status::kComm,
                 "rendezvous: the interfaces cannot be read (", errno_text(errno), ")");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::string names;
  for (const ifaddrs* at = list; at; at = at->ifa_next) {
    if (!at->ifa_addr || at->ifa_addr->sa_family != family) continue;
    const std::string address = number_of(at->ifa_addr, length_of(family));
    if (interface == at->ifa_name || interface == address)
      return copy_of(at->ifa_addr, length_of(family));
    names += cat(names.empty() ? "" : ", ", at->ifa_name, " ", address);
  }
  throw Error(Status::kInvalidArgument,
              cat("rendezvous: interface '", interface, "' is none of this machine's (", names,
                  "); use the name or the address of one"));
}

Socket listen_at(SocketAddress address, const std::string& interface, int backlog) {
  if (!interface.empty()) {
    const uint16_t port = port_of(address);
    address = interface_address(interface, address.family());
    address.set_port(port);
  }
  Socket out(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (out) setsockopt(out.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool good =
      out && bind(out.fd(), address.get(), address.length) == 0 && listen(out.fd(), backlog) == 0;
  const int error = errno;
  MUONRT_REQUIRE(good, Status::kComm, "rendezvous: rank 0 cannot listen at ",
                 number_of(address.get(), address.length), " port ", port_of(address), " (",
                 errno_text(error),
                 "); use an address of rank 0's machine and a port that is free there");
  return out;
}

Socket try_connect(const SocketAddress& address, const std::string& interface, Deadline deadline,
                   std::string& why) {
  Socket out(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (out && !interface.empty()) {
    const SocketAddress mine = interface_address(interface, address.family());
    if (bind(out.fd(), mine.get(), mine.length) != 0) {
      why = errno_text(errno);
      return Socket();
    }
  }
  if (!out || (connect(out.fd(), address.get(), address.length) != 0 && errno != EINPROGRESS)) {
    why = errno_text(errno);
    return Socket();
  }
  if (!wait_for(out.fd(), POLLOUT, deadline)) {
    why = "no answer";
    return Socket();
  }
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(out.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) {
    why = errno_text(error);
    return Socket();
  }
  // Where nobody listens at a port that this very socket was given, it meets itself.
  SocketAddress here;
  here.length = sizeof here.storage;
  getsockname(out.fd(), reinterpret_cast<sockaddr*>(&here.storage), &here.length);
  if (port_of(here) == port_of(address) &&
      number_of(here.get(), here.length) == number_of(address.get(), address.length)) {
    why = "nobody listens";
    return Socket();
  }
  return out;
}

std::pair<Socket, Socket> socket_pair() {
  int ends[2] = {-1, -1};
  MUONRT_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, Status::kComm,
                 "rendezvous: no pair of sockets (", errno_text(errno),
                 "); raise the limit of open files");
  return {Socket(ends[0]), Socket(ends[1])};
}

void prepare(const Socket& s) {
  const int on = 1;
  setsockopt(s.fd(), IPPROTO_TCP, TCP_NODELAY, &on,
             sizeof on);  // fails on a pair, where it is moot
  setsockopt(s.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

int poll_ms(Deadline deadline, int most) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline.at() - Deadline::Clock::now())
          .count();
  return static_cast<int>(std::clamp<int64_t>(left + 1, 0, most));
}

bool wait_for(int fd, short events, Deadline deadline) {
  pollfd look{fd, events, 0};
  while (true) {
    const int ready = poll(&look, 1, poll_ms(deadline, 1000));
    if (ready > 0) return true;
    if (deadline.passed()) return false;
  }
}

}  // namespace muonrt
