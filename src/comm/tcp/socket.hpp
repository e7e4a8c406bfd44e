#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/descriptor.hpp"
#include "base/error.hpp"
#include "comm/tcp/addresses.hpp"

namespace muonrt {

using Socket = Descriptor;

/// "errno 111, Connection refused".
std::string errno_text(int error);

/// Listens at all of `addresses` that are this machine's.
/// Errors: COMM if none is, or another program listens at one.
std::vector<Socket> listen_at(const std::vector<SocketAddress>& addresses, int backlog);

/// The same at one port for all of them that is free; theirs is 0.
std::vector<Socket> listen_at_free_port(const std::vector<SocketAddress>& addresses, int backlog);

/// The address at this end.
SocketAddress address_of(const Socket& socket);

/// @param from  an address of this machine to call from, or null.
/// @return  an open connection, or none; then `why` says why. Waits no longer than the deadline.
Socket try_connect(const SocketAddress& address, const SocketAddress* from, Deadline deadline,
                   std::string& why);

/// Whether both ends are this one. Where nobody listens at a port of the range that the system
/// gives to callers, it may give a caller that very port, which then answers itself.
bool is_self_connection(const Socket& socket);

/// Its port is free again at once when it is closed, and not after a minute; for ends that nothing
/// was said over.
void reset_when_closed(const Socket& socket);

/// A pair of connected ends.
std::pair<Socket, Socket> socket_pair();

/// No delay, keepalive, calls that do not block.
void prepare(const Socket& socket);

/// Waits until one of `events` (poll) or an error is there; false after the deadline.
bool wait_for(int fd, short events, Deadline deadline);

/// Milliseconds for poll: up to the deadline, at most `most`.
int poll_ms(Deadline deadline, int most);

}  // namespace muonrt
