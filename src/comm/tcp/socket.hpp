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

/// Listens at all of `addresses` that belong to this machine.
/// Errors: COMM if none does, or if another program listens at one.
std::vector<Socket> listen_at(const std::vector<SocketAddress>& addresses, int backlog);

/// The same for addresses with port 0: listens at one free port for all of them.
std::vector<Socket> listen_at_free_port(const std::vector<SocketAddress>& addresses, int backlog);

/// Returns the local address of a socket.
SocketAddress address_of(const Socket& socket);

/// Connects to `address`, waiting at most until the deadline.
/// @param from  the local address to use; null: any.
/// @return  an open connection. On error an empty socket, and `why` is the reason.
Socket try_connect(const SocketAddress& address, const SocketAddress* from, Deadline deadline,
                   std::string& why);

/// Returns true if a socket is connected to itself. That can happen if no process listens at a port
/// of the ephemeral range and the system chooses this port as the local port of the connection.
bool is_self_connection(const Socket& socket);

/// Makes the port free as soon as the socket is closed, and not after a minute. Only for sockets
/// over which no data was sent.
void reset_when_closed(const Socket& socket);

/// Returns two sockets that are connected to each other.
std::pair<Socket, Socket> socket_pair();

/// Sets TCP_NODELAY and SO_KEEPALIVE.
void prepare(const Socket& socket);

/// Waits until poll() reports one of `events` or an error. Returns false after the deadline.
bool wait_for(int fd, short events, Deadline deadline);

/// Returns the number of milliseconds until the deadline, at most `most`, as a timeout of poll().
int poll_ms(Deadline deadline, int most);

}  // namespace muonrt
