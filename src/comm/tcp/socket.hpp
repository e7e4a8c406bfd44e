#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "base/descriptor.hpp"
#include "base/error.hpp"

namespace muonrt {

/// An address and a port. The ranks also send addresses to each other in this form.
class SocketAddress {
 public:
  SocketAddress() = default;  // no address
  explicit SocketAddress(const sockaddr* address);

  int family() const { return data_.sin6_family; }  // AF_INET or AF_INET6; 0 if there is no address
  uint16_t port() const { return ntohs(data_.sin6_port); }
  SocketAddress with_port(uint16_t other) const {
    SocketAddress out = *this;
    out.data_.sin6_port = htons(other);
    return out;
  }
  bool operator==(const SocketAddress& other) const {
    return std::memcmp(&data_, &other.data_, sizeof data_) == 0;
  }
  bool same_host(const SocketAddress& other) const { return with_port(0) == other.with_port(0); }
  /// Returns true if the address is in 127.0.0.0/8 or is ::1, so only its own machine can reach it.
  bool is_loopback() const {
    return family() == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&data_.sin6_addr) : ip()[0] == 127;
  }
  bool is_link_local() const {
    return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&data_.sin6_addr);
  }
  /// Returns the bytes of the address, without the port.
  std::string_view ip() const;
  /// Returns a string such as "10.0.0.5" or "fd00::5".
  std::string host() const;
  /// Returns a string such as "10.0.0.5:4567" or "[fd00::5]:4567".
  std::string text() const {
    return family() == AF_INET6 ? cat('[', host(), "]:", port()) : cat(host(), ':', port());
  }

  // The form that system calls need.
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&data_); }
  socklen_t length() const { return family() == AF_INET6 ? sizeof data_ : sizeof(sockaddr_in); }

 private:
  sockaddr_in6 data_{};  // may contain a sockaddr_in: its family and port have the same offsets
};

using Addresses = std::vector<SocketAddress>;

/// Returns the port of "host:port" or "[::1]:port"; 0 means any free port. Errors: INVALID_ARGUMENT
/// if the text has a different form.
uint16_t port_of(const std::string& host_and_port);

/// Resolves "host:port" or "[::1]:port" to addresses without duplicates. If the name cannot be
/// resolved, perhaps only temporarily, returns no address and sets `why`. The system's resolver has
/// its own timeouts. Errors: INVALID_ARGUMENT if the text has a different form.
Addresses look_up(const std::string& host_and_port, std::string& why);
/// Like look_up(), but throws COMM if the name cannot be resolved.
Addresses resolve(const std::string& host_and_port);

/// Returns the addresses of this machine that other machines may be able to connect to, with port
/// 0. If there are none, returns the loopback addresses.
Addresses local_addresses();

// The following functions have an argument `interface`: the name of an interface ("eth0") or one of
// its addresses ("10.0.0.5"). An interface may have multiple addresses. Errors: INVALID_ARGUMENT if
// this machine has no such interface, or if the interface has no address of a required family.

/// Returns the addresses that rank 0 listens at on `interface`: the elements of `addresses` that
/// belong to this interface. If there are none, for example after address translation (NAT),
/// returns the first address of the interface in the family of `addresses`.
Addresses addresses_on(const std::string& interface, const Addresses& addresses);

/// A local and a remote address of a connection.
struct SocketRoute {
  SocketAddress from;  // the port is 0; an empty address stands for any address
  SocketAddress to;
  bool local = false;  // true if `to` belongs to the interface
};
/// Returns a route to each of `addresses` if `interface` has an address of the same family. If the
/// interface has multiple addresses in the family, prefers an equal address, then an address in the
/// same network, then the first address that is not link-local. If `interface` is empty, a route
/// may start at any address.
std::vector<SocketRoute> routes_from(const std::string& interface, const Addresses& addresses);

using Socket = Descriptor;

/// Returns a string such as "errno 111, Connection refused".
std::string errno_text(int error);

/// A range of ports. If `last` is 0, any free port may be used.
struct PortRange {
  int32_t first = 0, last = 0;
};

void turn_on(const Socket& socket, int level, int option);
/// Returns a socket that shares its port: all sockets of a port may set SO_REUSEADDR if none of
/// them listens. For example, the system may choose the port that rank 0 will listen on later.
Socket stream_socket(int family);

/// Listens at all of `addresses` that belong to this machine. If their port is 0, all of them get
/// the same free port from the range. Errors: COMM if none of the addresses belongs to this
/// machine, or if another program listens at one of them.
std::vector<Socket> listen_at(Addresses addresses, PortRange ports = {});

/// Return the local address of a socket, and the address of the other end of its connection. If the
/// connection has ended, peer_of() returns an empty address.
SocketAddress address_of(const Socket& socket);
SocketAddress peer_of(const Socket& socket);

/// Sets TCP_NODELAY and SO_KEEPALIVE.
void prepare(const Socket& socket);

/// The result of a read or write that does not block. If it is kBlocked, the operation can continue
/// later.
enum class Progress { kDone, kBlocked, kEnded };
/// Returns the result of a call that has failed with errno.
Progress after_error();
/// Reads the bytes that have arrived, up to `bytes` bytes in total, of which `got` were read
/// before.
Progress receive_rest(const Socket& socket, void* data, size_t bytes, size_t& got);

/// Waits until poll() reports one of `events` or an error. Returns false after the deadline.
/// @param check  if set, called about every 100 ms and after a signal; may throw.
bool wait_for(int fd, short events, Deadline deadline, const std::function<void()>& check = {});

/// Returns the number of milliseconds until the deadline, at most `most`, as a timeout of poll().
int poll_ms(Deadline deadline, int most);

}  // namespace muonrt
