#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace muonrt {

/// An address and a port. The ranks also send them in this form.
class SocketAddress {
 public:
  SocketAddress() = default;  // no address
  explicit SocketAddress(const sockaddr* address);

  int family() const { return data_.sin6_family; }  // AF_INET, AF_INET6; 0: no address
  uint16_t port() const { return ntohs(data_.sin6_port); }
  SocketAddress with_port(uint16_t other) const;
  bool operator==(const SocketAddress& other) const;
  bool same_host(const SocketAddress& other) const { return with_port(0) == other.with_port(0); }
  /// True for an address that only its own machine can reach: in 127.0.0.0/8, or ::1.
  bool is_loopback() const;
  bool is_link_local() const {
    return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&data_.sin6_addr);
  }
  /// The bytes of the address, without the port.
  std::span<const uint8_t> ip() const;
  /// "10.0.0.5" or "fd00::5".
  std::string host() const;
  /// "10.0.0.5:4567" or "[fd00::5]:4567".
  std::string text() const;

  // For system calls.
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&data_); }
  socklen_t length() const;

 private:
  sockaddr_in6 data_{};  // or a sockaddr_in, which has its family and its port at the same offsets
};

/// Returns the port of "host:port" or "[::1]:port"; 0 means any free port. Errors: INVALID_ARGUMENT
/// if the text has a different form.
uint16_t port_of(const std::string& host_and_port);
/// Returns the text with another port.
std::string with_port(const std::string& host_and_port, uint16_t port);

/// Resolves "host:port" or "[::1]:port" to addresses without duplicates. Returns no address and
/// sets `why` if the name cannot be resolved, perhaps only for now. The system's resolver has its
/// own timeouts. Errors: INVALID_ARGUMENT if the text has a different form.
std::vector<SocketAddress> look_up(const std::string& host_and_port, std::string& why);

/// Like the function above, but with these errors: INVALID_ARGUMENT if the text has a different
/// form; COMM if the name cannot be resolved.
std::vector<SocketAddress> resolve(const std::string& host_and_port);

/// Returns this machine's addresses, with port 0, except the link-local ones, which have no meaning
/// on other machines.
std::vector<SocketAddress> local_addresses();

// An interface is given by its name ("eth0") or by one of its addresses ("10.0.0.5"), and may have
// several addresses. Errors of both functions: INVALID_ARGUMENT if this machine has no such
// interface, or the interface has no address of a required family.

/// Returns the addresses at which rank 0 listens on `interface`, which are those of `addresses`
/// that belong to this interface. If there are none, for example after address translation (NAT),
/// returns the first address of the interface in the family of `addresses`.
std::vector<SocketAddress> addresses_on(const std::string& interface,
                                        const std::vector<SocketAddress>& addresses);

/// A local and a remote address of a connection.
struct SocketRoute {
  SocketAddress from;  // port 0; none: any
  SocketAddress to;
  bool local = false;  // `to` belongs to the interface
};
/// Returns a route to each of `addresses` in whose family `interface` has an address. If the
/// interface has several addresses in the family, prefers an equal address, then one in the same
/// network, then the first one that is not link-local. Without an interface, the routes start at
/// any address.
std::vector<SocketRoute> routes_from(const std::string& interface,
                                     const std::vector<SocketAddress>& addresses);

}  // namespace muonrt
