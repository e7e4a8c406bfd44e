#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "base/descriptor.hpp"
#include "base/error.hpp"
#include "comm/tcp/addresses.hpp"

namespace muonrt {

using Socket = Descriptor;

/// Returns a string such as "errno 111, Connection refused".
std::string errno_text(int error);

/// Listens at all of `addresses` that belong to this machine. Addresses with port 0 get the same
/// free port. Errors: COMM if none of the addresses belongs to this machine, or if another program
/// listens at one of them.
/// @param taken  the remedy in the error if another program listens.
std::vector<Socket> listen_at(
    const std::vector<SocketAddress>& addresses,
    const std::string& taken = "pass a port that is free on this machine");

/// A range of ports. If `last` is 0, any free port may be used.
struct PortRange {
  int32_t first = 0, last = 0;
};

/// Listens on all addresses. All listeners use the same free port from the range.
std::vector<Socket> listen_in_range(std::vector<SocketAddress> addresses, PortRange ports);

/// Return the local address of a socket, and the address of the other end of its connection. If the
/// connection has ended, peer_of() returns an empty address.
SocketAddress address_of(const Socket& socket);
SocketAddress peer_of(const Socket& socket);

/// Starts to connect to `address`. If the attempt fails immediately, the returned socket is empty,
/// and `why` contains the reason.
/// @param from  the local address to use. An empty address stands for any local address.
Socket begin_connect(const SocketAddress& address, const SocketAddress& from, std::string& why);
/// Returns false and sets `why` if the connection has failed. Call this function when the socket is
/// writable.
bool is_connected(const Socket& socket, std::string& why);

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
