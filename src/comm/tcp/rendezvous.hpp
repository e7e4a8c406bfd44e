#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "base/function_ref.hpp"
#include "comm/tcp/handshake.hpp"
#include "comm/tcp/socket.hpp"

namespace muonrt {

/// The configuration of a rendezvous over TCP: rank 0 listens, and the other ranks connect to it.
struct TcpRendezvous {
  int rank = 0, size = 1;
  std::string address;    // "host:port" of rank 0; on rank 0, port 0 means any free port
  std::string interface;  // name or address of this machine's interface to use. Empty: any (rank 0:
                          // all of its addresses to which `address` resolves)
  std::string secret;     // equal on all ranks; at least kSecretBytes bytes
  int32_t version = 0;    // of the library; must be equal on all ranks
  PortRange ports = {};   // at which this rank listens for other ranks
  /// Rank 0 calls it, if set, with `address` and the actual port after it has started to listen.
  std::function<void(const std::string& address)> listening = {};
  /// Called, if set, about every 100 ms while the rendezvous waits. May throw, which ends it.
  std::function<void()> check_interrupt = {};
};

/// What a rank has after a rendezvous.
struct TcpConnections {
  int rank = 0, size = 1;
  std::vector<Socket> sockets;  // rank 0: connections to all ranks; others: [0] is that to rank 0
  Socket listener;              // for the connections of higher ranks, except on rank 0
  std::vector<SocketAddress> addresses;  // of the listeners, by rank; rank 0 has none
  SocketAddress from;                    // local address of new connections; none: any
  Digest key{};                          // equal on all ranks of this run
};

/// Errors of all: INVALID_ARGUMENT. The last one: also COMM if the process may not open enough
/// files.
void check_rank(int rank, int size);
void check_ports(PortRange ports, const char* where);
void check_rendezvous(const TcpRendezvous& rendezvous);
void check_open_files(int rank, int size);

// Both ends prove that they know the secret without sending it: each answers the random number of
// the other end with an HMAC over both numbers and the fields of its message. The connecting rank
// proves it first; a connection without a valid proof is closed without an answer and has no
// effect. Later frames are neither encrypted nor signed.

/// For rank 0: accepts the connections of all other ranks. Connections without a valid proof, for
/// example of port scanners, are rejected, and it continues to wait.
/// Errors, which all connected ranks get, too: MISMATCH if the size or version of a rank differs,
/// if its rank does not exist, or if two processes have the same rank. TIMEOUT, with the missing
/// ranks. COMM if the process may not open enough files.
TcpConnections accept_all_ranks(const TcpRendezvous& rendezvous, Deadline deadline);
/// The same with sockets that listen already; `rendezvous.address` is only used in messages.
TcpConnections accept_all_ranks(const TcpRendezvous& rendezvous, std::vector<Socket> listeners,
                                Deadline deadline);

/// For the other ranks: connects to rank 0 and returns when all ranks are connected. Retries, with
/// pauses, if the name cannot be resolved, no process listens, or the connection ends before rank 0
/// has answered.
/// Errors: INVALID_ARGUMENT; COMM if another program listens at the address, no port is free, or
/// rank 0 closes kMaxUnanswered connections without an answer; the error that rank 0 sends;
/// TIMEOUT.
constexpr int kMaxUnanswered = 8;
TcpConnections connect_to_rank_0(const TcpRendezvous& rendezvous, Deadline deadline);

/// The possible addresses of rank 0, and the secret of the rendezvous.
struct RankZeroContact {
  std::vector<SocketAddress> addresses;  // empty: not known yet
  std::string secret;
};
/// The same, but calls `search` before each attempt; `rendezvous.address` is only used in messages.
/// @param search  returns the addresses. If there are none, it sets `why` to the reason.
TcpConnections connect_to_rank_0(const TcpRendezvous& rendezvous,
                                 FunctionRef<RankZeroContact(std::string& why)> search,
                                 Deadline deadline);

}  // namespace muonrt
