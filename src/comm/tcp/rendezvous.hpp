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
struct Rendezvous {
  int rank = 0, size = 1;
  /// "host:port" of rank 0; on rank 0, port 0 means any free port. In a shared folder: the path of
  /// the folder, which exists.
  std::string address;
  std::string secret;    // equal on all ranks; at least kSecretBytes bytes; in a folder also empty
  int32_t version = 0;   // of the library; must be equal on all ranks
  PortRange ports = {};  // at which this rank listens for other ranks
  /// Called, if set, about every 100 ms while the rendezvous waits. May throw, which ends it.
  std::function<void()> check_interrupt = {};

  // In a folder: names this run, with 1 to 64 letters, digits, '.', '-', '_'.
  std::string run_id = {};

  // At an address:
  /// Name or address of the interface of this machine to use. If empty, any interface is used; rank
  /// 0 then listens at all of its addresses to which `address` resolves.
  std::string interface = {};
  /// If set, rank 0 calls it after it has started to listen, with `address` and the actual port.
  std::function<void(const std::string& address)> listening = {};
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

/// Connects all ranks at the address of rank 0. Collective over all ranks. Rank 0 rejects
/// connections without a valid proof, for example of port scanners, and continues to wait. The
/// other ranks retry, with pauses, if the name cannot be resolved, no process listens, or the
/// connection ends before rank 0 has answered.
/// Errors: INVALID_ARGUMENT on one rank. MISMATCH on all ranks if the size or version of a rank
/// differs, if its rank does not exist, or if two processes have the same rank. TIMEOUT, with the
/// missing ranks. COMM if the process may not open enough files, no port is free, another program
/// listens at the address, or rank 0 closes kMaxUnanswered connections without an answer.
TcpConnections rendezvous_at_address(const Rendezvous& rendezvous, Deadline deadline);
constexpr int kMaxUnanswered = 8;

/// Connects all ranks through a folder that all of them can access. Rank 0 listens at free ports of
/// all addresses of its machine. It writes these addresses and a random number to the file
/// `address`/`run_id`, and deletes the file after the rendezvous. The other ranks read the file and
/// connect to rank 0. The file has an HMAC over its content and the run id; without a secret the
/// key is empty, so the HMAC is only a checksum. Over TCP the ranks prove that they know both the
/// secret and the random number, so ranks of different runs cannot connect, even without a secret.
/// Errors: INVALID_ARGUMENT on one rank. MISMATCH and TIMEOUT in the same cases as for an address.
/// IO if the folder or the file cannot be used. COMM if the process may not open enough files, no
/// port is free, or the file was written with a different secret. INVALID_STATE on rank 0 if the
/// file already exists, and on the other ranks if it belongs to another user and there is no
/// secret. CORRUPT if rank 0 did not write it.
TcpConnections rendezvous_in_folder(const Rendezvous& rendezvous, Deadline deadline);

// The parts of both:

/// Errors: INVALID_ARGUMENT; COMM if the process may not open enough files.
/// @param where  begins the messages.
void check_rendezvous(const Rendezvous& rendezvous, const char* where);

/// For rank 0: accepts the connections of all other ranks. The errors that it throws are also sent
/// to all connected ranks. `rendezvous.address` is only used in messages.
TcpConnections accept_all_ranks(const Rendezvous& rendezvous, std::vector<Socket> listeners,
                                Deadline deadline);

/// The possible addresses of rank 0, and the secret of the rendezvous.
struct RankZeroContact {
  std::vector<SocketAddress> addresses;  // empty: not known yet
  std::string secret;
};
/// For the other ranks: connects to rank 0 and returns when all ranks are connected.
/// `rendezvous.address` is only used in messages.
/// @param search  called before each attempt; returns the addresses. If there are none, it sets
///     `why` to the reason.
TcpConnections connect_to_rank_0(const Rendezvous& rendezvous,
                                 FunctionRef<RankZeroContact(std::string& why)> search,
                                 Deadline deadline);

}  // namespace muonrt
