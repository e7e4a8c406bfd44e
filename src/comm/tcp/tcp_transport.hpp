#pragma once

#include <memory>

#include "comm/tcp/rendezvous.hpp"
#include "comm/transport.hpp"

namespace muonrt {

/// Creates a transport over TCP after a rendezvous. Two ranks connect when they exchange for the
/// first time. If the connection of a rank ends, the waits of its peers for this rank end with
/// COMM. If the connection of rank 0 ends without a goodbye, all waits end with COMM.
std::unique_ptr<Transport> make_tcp_transport(TcpConnections connections);

}  // namespace muonrt
