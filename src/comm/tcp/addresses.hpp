#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

namespace muonrt {

/// An address with its length, as the system calls take it.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  int family() const { return storage.ss_family; }
  /// One that only its own machine reaches: of 127.0.0.0/8, or ::1.
  bool is_loopback() const;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  uint16_t port() const;
  void set_port(uint16_t port);
  /// "10.0.0.5" or "fd00::5".
  std::string host() const;
  /// "10.0.0.5:4567" or "[fd00::5]:4567".
  std::string text() const;
};

/// Whether both are of one host, whatever their ports.
bool same_host(const SocketAddress& a, const SocketAddress& b);

/// The port of "host:port" or "[::1]:port", 0 for one that is free; and the same place with
/// another. Errors: INVALID_ARGUMENT if it is no such text.
uint16_t port_of(const std::string& host_and_port);
std::string with_port(const std::string& host_and_port, uint16_t port);

/// The addresses of "host:port" or "[::1]:port", each once; none if the name is not known, perhaps
/// not yet; then `why` says so. The system's resolver has timeouts of its own.
/// Errors: INVALID_ARGUMENT if it is no such text.
std::vector<SocketAddress> look_up(const std::string& host_and_port, std::string& why);

/// The same. Errors: COMM too, if the name is not known.
std::vector<SocketAddress> resolve(const std::string& host_and_port);

/// This machine's addresses that others may call, with port 0: all but the link-local ones, which
/// mean nothing elsewhere.
std::vector<SocketAddress> local_addresses();

// An interface is given by its name ("eth0") or by one of its addresses ("10.0.0.5"), and may have
// several. Errors of both: INVALID_ARGUMENT if this machine has none such, or it has no address of
// a family that is asked for.

/// Where rank 0 listens on `interface`: at those of `addresses` that lie on it, else, as behind an
/// address that is translated, at the first of its own addresses that is of their family.
std::vector<SocketAddress> addresses_on(const std::string& interface,
                                        const std::vector<SocketAddress>& addresses);

/// A way to call from an interface.
struct SocketRoute {
  SocketAddress from;  // port 0
  SocketAddress to;
};
/// To each of `addresses` that is of a family that `interface` has, from that of its addresses
/// which fits best: the same, in the same network, the first.
std::vector<SocketRoute> routes_from(const std::string& interface,
                                     const std::vector<SocketAddress>& addresses);

}  // namespace muonrt
