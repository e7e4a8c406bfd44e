#pragma once

#include <memory>

#include "comm/tcp/rendezvous.hpp"
#include "comm/transport.hpp"

namespace muonrt {

/// Creates a transport over TCP after a rendezvous. Two ranks connect when they first exchange
/// messages. If the connection of a rank is lost, its peers stop waiting for this rank and throw
/// COMM. If the connection of rank 0 is lost without a goodbye, all waiting operations throw COMM.
std::unique_ptr<Transport> make_tcp_transport(TcpConnections connections);

}  // namespace muonrt
