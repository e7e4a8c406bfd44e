#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "base/function_ref.hpp"
#include "comm/tcp/handshake.hpp"
#include "comm/tcp/socket.hpp"

namespace muonrt {

/// How ranks of one run find each other over TCP: rank 0 listens, the others come to it.
struct TcpRendezvous {
  int rank = 0, size = 1;
  std::string address;    // "host:port" of rank 0, which may have port 0: one that is free
  std::string interface;  // name or address of the one to use on this machine; empty: any that fits
                          // (rank 0: all of its addresses that `address` stands for)
  std::string secret;     // the same on all ranks, at least kSecretBytes
  int32_t version = 0;    // of the library; must be equal
  /// Rank 0, if not empty: is given `address` with its port once it listens, before it waits.
  std::function<void(const std::string& address)> listening = {};
};

/// Errors of both: INVALID_ARGUMENT.
void check_rank(int rank, int size);
void check_rendezvous(const TcpRendezvous& rendezvous);

// The ends prove to each other that they know the secret, without telling it: each answers the
// other's fresh random number with an HMAC over both numbers and what it claims to be. Whoever
// cannot is turned away and changes nothing. The secret keeps strangers out; what is said
// afterwards is neither encrypted nor signed.

/// Rank 0: the connections of all others, by rank (that of rank 0 is empty). Strangers, port
/// scanners and those with another secret are turned away while it goes on waiting.
/// Errors, which the ranks that have come get too: MISMATCH if a rank believes in another number of
/// ranks or runs another version, is none of them, or if two say they are the same rank. TIMEOUT
/// naming who is missing. COMM if the process may not open so many files.
std::vector<Socket> accept_all_ranks(const TcpRendezvous& rendezvous, Deadline deadline);
/// The same for one who listens already; `meeting.address` is a name for messages alone.
std::vector<Socket> accept_all_ranks(const TcpRendezvous& rendezvous, std::vector<Socket> listeners,
                                     Deadline deadline);

/// The others: the connection to rank 0, once all ranks have come. Tries again, with pauses, while
/// its name is not known, nobody listens, or when the connection ends before rank 0 has answered.
/// Errors: INVALID_ARGUMENT; COMM if the secrets differ or something else listens there; what rank
/// 0 says; TIMEOUT.
Socket connect_to_rank_0(const TcpRendezvous& rendezvous, Deadline deadline);

/// Where rank 0 may be, and the secret that it knows.
struct RankZeroContact {
  std::vector<SocketAddress> addresses;  // none: not known yet
  std::string secret;
};
/// The same for one who asks `search` before each try; `meeting.address` is a name for messages
/// alone. What `search` gives as `why` is said where no address is known.
Socket connect_to_rank_0(const TcpRendezvous& rendezvous,
                         FunctionRef<RankZeroContact(std::string& why)> search, Deadline deadline);

}  // namespace muonrt
