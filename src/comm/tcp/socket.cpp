#include "comm/tcp/socket.hpp"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <system_error>

namespace muonrt {

namespace {

/// One of this machine's addresses.
struct LocalAddress {
  std::string interface;
  SocketAddress address, mask;

  bool same_net(const SocketAddress& a) const {
    if (a.family() != address.family() || mask.family() != address.family()) return false;
    for (size_t i = 0; i < a.ip().size(); ++i)
      if ((a.ip()[i] ^ address.ip()[i]) & mask.ip()[i]) return false;
    return true;
  }
  /// Returns how suitable the address is for a connection to `a`. 0 means that it is unsuitable,
  /// and kEqual that `a` is this address. All addresses in 127.0.0.0/8 belong to this machine,
  /// although the system lists only one of them.
  int fit(const SocketAddress& a) const {
    if (a.family() != address.family()) return 0;
    if (address.same_host(a)) return kEqual + 1;
    if (same_net(a)) return a.is_loopback() ? kEqual : 3;
    return address.is_link_local() ? 1 : 2;
  }
  static constexpr int kEqual = 4;
};

std::vector<LocalAddress> own_addresses() {
  ifaddrs* list = nullptr;
  const bool known = getifaddrs(&list) == 0;
  if (!known && errno == ENOMEM) throw Error(Status::kOutOfMemory);
  MUONRT_REQUIRE(known, Status::kComm, "rendezvous: the system did not list its interfaces (",
                 errno_text(errno), "); omit the interface");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<LocalAddress> out;
  for (const ifaddrs* at = list; at; at = at->ifa_next) {
    const int family = at->ifa_addr ? at->ifa_addr->sa_family : AF_UNSPEC;
    if (family != AF_INET && family != AF_INET6) continue;
    // The mask of an interface that belongs to no network may have no family.
    const bool masked = at->ifa_netmask && at->ifa_netmask->sa_family == family;
    out.push_back({at->ifa_name, SocketAddress(at->ifa_addr),
                   masked ? SocketAddress(at->ifa_netmask) : SocketAddress()});
  }
  return out;
}

/// Appends the addresses of a host to `out`, without duplicates. Returns the result of
/// getaddrinfo(). Errors: OUT_OF_MEMORY, which says nothing about whether the host exists.
int get_addresses(const std::string& host, const std::string& port, int flags, Addresses& out) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* list = nullptr;
  const int result = getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  if (result == EAI_MEMORY || (result == EAI_SYSTEM && errno == ENOMEM))
    throw Error(Status::kOutOfMemory);
  if (result != 0) return result;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, freeaddrinfo);
  for (const addrinfo* one = list; one; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    const SocketAddress address(one->ai_addr);
    if (std::find(out.begin(), out.end(), address) == out.end()) out.push_back(address);
  }
  return 0;
}

/// Returns the addresses of the interface with the name `interface`. If `interface` is an address,
/// returns this local address.
std::vector<LocalAddress> addresses_of_interface(const std::string& interface) {
  Addresses number;  // an address has several forms ("fd00:0::5" and "fd00::5")
  get_addresses(interface, "0", AI_NUMERICHOST, number);
  std::vector<LocalAddress> out;
  std::string names;
  for (const LocalAddress& own : own_addresses()) {
    const bool by_number = !number.empty() && own.address.same_host(number[0]);
    if (own.interface == interface || by_number) out.push_back(own);
    names += cat(names.empty() ? "" : ", ", own.interface, " ", own.address.host());
  }
  MUONRT_REQUIRE(!out.empty(), Status::kInvalidArgument, "rendezvous: interface '", interface,
                 "' does not exist on this machine; pass a name or an address of one of: ", names);
  return out;
}

struct HostAndPort {
  std::string host, port;
  bool number = false;  // the host is a number or invalid, so a retry would fail again
};

HostAndPort parse_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  MUONRT_REQUIRE(colon != std::string::npos && colon > 0 && colon + 1 < text.size(),
                 Status::kInvalidArgument, "rendezvous: address is '", text,
                 "', but must be host:port, or [address]:port for IPv6; use one of these forms");
  HostAndPort out{text.substr(0, colon), text.substr(colon + 1)};
  const std::string& port = out.port;
  MUONRT_REQUIRE(port.find_first_not_of("0123456789") == std::string::npos && port.size() <= 5 &&
                     std::stoi(port) <= 65535,
                 Status::kInvalidArgument, "rendezvous: the port of address '", text, "' is '",
                 port, "'; pass 1 to 65535");
  std::string& host = out.host;
  const bool brackets = host.front() == '[' && host.back() == ']';
  if (brackets) host = host.substr(1, host.size() - 2);
  const auto is_outside_names = [](char c) { return is_control(c) || std::strchr(" /:@[]", c); };
  out.number = brackets || host.find_first_not_of("0123456789.") == std::string::npos ||
               std::any_of(host.begin(), host.end(), is_outside_names);
  return out;
}

/// @param get  getsockname or getpeername.
SocketAddress address_from(int (*get)(int, sockaddr*, socklen_t*), const Socket& s) {
  sockaddr_storage out{};
  socklen_t length = sizeof out;
  get(s.fd(), reinterpret_cast<sockaddr*>(&out), &length);
  return SocketAddress(reinterpret_cast<sockaddr*>(&out));
}

}  // namespace

SocketAddress::SocketAddress(const sockaddr* address) {
  data_.sin6_family = address->sa_family;
  std::memcpy(&data_, address, length());
}

std::string_view SocketAddress::ip() const {
  const auto* const at = reinterpret_cast<const char*>(&data_);
  if (family() == AF_INET6) return {at + offsetof(sockaddr_in6, sin6_addr), 16};
  return {at + offsetof(sockaddr_in, sin_addr), 4};
}

std::string SocketAddress::host() const {
  char text[NI_MAXHOST] = "";
  getnameinfo(get(), length(), text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

uint16_t port_of(const std::string& host_and_port) {
  return static_cast<uint16_t>(std::stoi(parse_address(host_and_port).port));
}

Addresses look_up(const std::string& host_and_port, std::string& why) {
  const HostAndPort at = parse_address(host_and_port);
  Addresses out;
  const int result = get_addresses(at.host, at.port, at.number ? AI_NUMERICHOST : 0, out);
  MUONRT_REQUIRE(result == 0 || !at.number, Status::kInvalidArgument,
                 "rendezvous: the host of address '", host_and_port, "' is '", at.host,
                 "'; pass a host name or an IP address");
  why = cat("host '", at.host, "' cannot be resolved");
  if (result != 0) why += cat(" (", gai_strerror(result), ")");
  return out;
}

Addresses resolve(const std::string& host_and_port) {
  std::string why;
  auto out = look_up(host_and_port, why);
  MUONRT_REQUIRE(!out.empty(), Status::kComm, "rendezvous: ", why,
                 "; pass a name or an address of rank 0");
  return out;
}

Addresses local_addresses() {
  Addresses out, loopback;
  for (const LocalAddress& own : own_addresses())
    if (!own.address.is_link_local())
      (own.address.is_loopback() ? loopback : out).push_back(own.address);
  return out.empty() ? loopback : out;
}

Addresses addresses_on(const std::string& interface, const Addresses& addresses) {
  const auto routes = routes_from(interface, addresses);
  Addresses out;
  for (const SocketRoute& route : routes)
    if (route.local) out.push_back(route.to);
  if (out.empty()) out.push_back(routes.front().from.with_port(routes.front().to.port()));
  return out;
}

std::vector<SocketRoute> routes_from(const std::string& interface, const Addresses& addresses) {
  std::vector<SocketRoute> out;
  const auto mine =
      interface.empty() ? std::vector<LocalAddress>() : addresses_of_interface(interface);
  for (const SocketAddress& to : addresses) {
    SocketRoute route{{}, to};
    int best = 0;
    for (const LocalAddress& own : mine) {
      if (own.fit(to) <= best) continue;
      best = own.fit(to);
      route = {own.address, to, best >= LocalAddress::kEqual};
    }
    if (best > 0 || interface.empty()) out.push_back(route);
  }
  MUONRT_REQUIRE(!out.empty() || addresses.empty(), Status::kInvalidArgument,
                 "rendezvous: interface '", interface, "' has no ",
                 addresses.front().family() == AF_INET6 ? "IPv6" : "IPv4", " address for ",
                 addresses.front().text(),
                 "; pass another interface, or another address of rank 0");
  return out;
}

std::string errno_text(int error) {
  return cat("errno ", error, ", ", std::generic_category().message(error));
}

void turn_on(const Socket& s, int level, int option) {
  const int on = 1;
  setsockopt(s.fd(), level, option, &on, sizeof on);
}

Socket stream_socket(int family) {
  Socket out([&] { return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (out) turn_on(out, SOL_SOCKET, SO_REUSEADDR);
  return out;
}

std::vector<Socket> listen_at(Addresses addresses, PortRange ports) {
  const bool given = addresses[0].port() != 0, any = ports.last == 0;
  const int32_t tries = given ? 1 : any ? 20 : ports.last - ports.first + 1;
  for (int32_t i = 0;; ++i) {
    std::vector<Socket> out;
    std::string problems;
    bool taken = false;  // ranks would connect to the program that listens at the address
    for (SocketAddress& address : addresses) {
      const int32_t port = !any ? ports.first + i : out.empty() ? 0 : address_of(out[0]).port();
      if (!given) address = address.with_port(static_cast<uint16_t>(port));
      Socket one = stream_socket(address.family());
      if (one && bind(one.fd(), address.get(), address.length()) == 0 &&
          listen(one.fd(), SOMAXCONN) == 0) {
        out.push_back(std::move(one));
        continue;
      }
      const int error = errno;
      taken = taken || (error != EADDRNOTAVAIL && error != EAFNOSUPPORT);
      problems += cat(problems.empty() ? "" : ", ", address.text(), " (", errno_text(error), ")");
    }
    if (!taken && !out.empty()) return out;
    if (taken && i + 1 < tries) continue;
    throw make_error(Status::kComm, "rendezvous: this rank cannot listen at ", problems, "; ",
                     !taken  ? "pass an address of this rank's machine"
                     : given ? "pass a port that is free on this machine"
                     : any   ? "free a port on this machine"
                             : cat("no port from ", ports.first, " to ", ports.last,
                                   " is free, so pass a larger range of ports"));
  }
}

SocketAddress address_of(const Socket& s) { return address_from(getsockname, s); }
SocketAddress peer_of(const Socket& s) { return address_from(getpeername, s); }

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
  const auto left = (deadline.at() - Deadline::Clock::now()) / std::chrono::milliseconds(1);
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
