#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "base/function_ref.hpp"
#include "comm/tcp/handshake.hpp"
#include "comm/tcp/socket.hpp"
#include "comm/transport.hpp"

namespace muonrt {

/// The configuration of a rendezvous over TCP: rank 0 listens, and the other ranks connect to it.
struct Rendezvous {
  int rank = 0, size = 1;
  /// "host:port" of rank 0; on rank 0, port 0 means any free port. For a shared folder: the path of
  /// the folder, which must exist.
  std::string address;
  std::string secret;    // equal on all ranks; at least kSecretBytes bytes, or for a folder empty
  int32_t version = 0;   // version of the library; must be equal on all ranks
  PortRange ports = {};  // ports that this rank may listen on for other ranks
  /// If set, called about every 100 ms while the rendezvous waits; may throw to end it.
  std::function<void()> check_interrupt = {};

  // Only for a folder: the name of this run. It has 1 to 64 letters, digits, '.', '-' or '_'.
  std::string run_id = {};

  // Only for an address:
  /// Name or address of the interface of this machine to use. If empty, any interface is used, and
  /// rank 0 listens at all of its addresses that `address` resolves to.
  std::string interface = {};
  /// If set, rank 0 calls this function after it has started to listen, with `address` and the
  /// actual port.
  std::function<void(const std::string& address)> listening = {};
};

/// The result of a rendezvous on one rank.
struct TcpConnections {
  int rank = 0, size = 1;
  std::vector<Socket> sockets;  // on rank 0, indexed by rank; on other ranks, [0] is to rank 0
  Socket listener;              // accepts the connections of other ranks; not used on rank 0
  Addresses addresses;          // listeners, indexed by rank; empty for rank 0
  SocketAddress from;           // local address of new connections; if empty, any address
  Digest key{};                 // equal on all ranks of this run
};

/// Connect all ranks: rank 0 listens, and the other ranks connect to it. Collective over all ranks.
/// muonrt_comm_create_tcp() and muonrt_comm_create_folder() document the errors.
TcpConnections rendezvous_at_address(const Rendezvous& rendezvous, Deadline deadline);
TcpConnections rendezvous_in_folder(const Rendezvous& rendezvous, Deadline deadline);

/// Creates a transport over TCP after a rendezvous. Two ranks connect when they first exchange
/// messages. If the connection of a rank is lost, its peers stop waiting for this rank and throw
/// COMM. If the connection of rank 0 is lost without a goodbye, all waiting operations throw COMM.
std::unique_ptr<Transport> make_tcp_transport(TcpConnections connections);

// Functions that both kinds of rendezvous use:

/// Errors: INVALID_ARGUMENT; COMM if the process cannot open enough files.
/// @param where  prefix of the error messages.
void check_rendezvous(const Rendezvous& rendezvous, const char* where);

/// Accepts the connections of all other ranks. Only for rank 0. Errors that this function throws
/// are also sent to all connected ranks. `rendezvous.address` is only used in messages.
TcpConnections accept_all_ranks(const Rendezvous& rendezvous, std::vector<Socket> listeners,
                                Deadline deadline);

/// Connects to rank 0, and returns when all ranks are connected. Only for the other ranks.
/// `rendezvous.address` is only used in messages.
/// @param search  called before each attempt; returns the addresses of rank 0, and may change the
///     secret. If it does not know any address, it sets `why` to the reason.
TcpConnections connect_to_rank_0(const Rendezvous& rendezvous,
                                 FunctionRef<Addresses(std::string& why)> search,
                                 Deadline deadline);

}  // namespace muonrt
