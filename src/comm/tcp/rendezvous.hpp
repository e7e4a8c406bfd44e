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
  /// "host:port" of rank 0; on rank 0, port 0 means any free port. For a shared folder: the path of
  /// the folder, which must exist.
  std::string address;
  std::string secret;    // equal on all ranks; at least kSecretBytes bytes, or for a folder empty
  int32_t version = 0;   // version of the library; must be equal on all ranks
  PortRange ports = {};  // ports that this rank may listen on for other ranks
  /// If set, called about every 100 ms while the rendezvous waits. If it throws, the rendezvous
  /// fails.
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
  std::vector<Socket> sockets;  // rank 0: connections to all ranks; other ranks: [0] is the
                                // connection to rank 0
  Socket listener;              // accepts the connections of higher ranks; not used on rank 0
  std::vector<SocketAddress> addresses;  // listeners, indexed by rank; empty for rank 0
  SocketAddress from;                    // local address of new connections; if empty, any address
  Digest key{};                          // equal on all ranks of this run
};

/// Connects all ranks; rank 0 listens at its address, and the others connect to it. Collective over
/// all ranks. Rank 0 rejects connections without a valid proof, for example from port scanners, and
/// continues to wait. The other ranks retry, with pauses, if the name cannot be resolved, if no
/// process listens, or if the connection ends before rank 0 has answered.
/// Errors: INVALID_ARGUMENT on one rank. MISMATCH on all ranks if the size or version of a rank
/// differs, if its rank does not exist, or if two processes have the same rank. TIMEOUT, with the
/// missing ranks. COMM if the process cannot open enough files, no port is free, another program
/// listens at the address, or rank 0 closes kMaxUnanswered connections without an answer.
TcpConnections rendezvous_at_address(const Rendezvous& rendezvous, Deadline deadline);
constexpr int kMaxUnanswered = 8;

/// Connects all ranks through a folder that all of them can access. Rank 0 listens at free ports of
/// all addresses of its machine. It writes these addresses and a random number to the file
/// `address`/`run_id`, and deletes the file after the rendezvous. The other ranks read the file and
/// connect to rank 0. The file contains an HMAC of its other content and of the run ID. Without a
/// secret the key of this HMAC is empty, so it is only a checksum. Over TCP the ranks prove that
/// they know both the secret and the random number. Ranks of different runs therefore cannot
/// connect, even without a secret.
/// Errors: INVALID_ARGUMENT on one rank. MISMATCH and TIMEOUT in the same cases as for an address.
/// IO if the folder or the file cannot be used. COMM if the process cannot open enough files, no
/// port is free, or the file was written with a different secret. INVALID_STATE on rank 0 if the
/// file already exists, and on the other ranks if it belongs to another user and there is no
/// secret. CORRUPT if rank 0 did not write it.
TcpConnections rendezvous_in_folder(const Rendezvous& rendezvous, Deadline deadline);

// Functions that both kinds of rendezvous use:

/// Errors: INVALID_ARGUMENT; COMM if the process cannot open enough files.
/// @param where  prefix of the error messages.
void check_rendezvous(const Rendezvous& rendezvous, const char* where);

/// Accepts the connections of all other ranks. Only for rank 0. Errors that this function throws
/// are also sent to all connected ranks. `rendezvous.address` is only used in messages.
TcpConnections accept_all_ranks(const Rendezvous& rendezvous, std::vector<Socket> listeners,
                                Deadline deadline);

/// The known addresses of rank 0, and the secret of the rendezvous.
struct RankZeroContact {
  std::vector<SocketAddress> addresses;  // empty if not known yet
  std::string secret;
};
/// Connects to rank 0, and returns when all ranks are connected. Only for the other ranks.
/// `rendezvous.address` is only used in messages.
/// @param search  called before each attempt; returns the addresses. If it does not know any, it
///     sets `why` to the reason.
TcpConnections connect_to_rank_0(const Rendezvous& rendezvous,
                                 FunctionRef<RankZeroContact(std::string& why)> search,
                                 Deadline deadline);

}  // namespace muonrt
