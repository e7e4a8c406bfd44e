#include "comm/tcp/rendezvous.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/backoff.hpp"
#include "base/peer_status.hpp"
#include "comm/tcp/handshake.hpp"

namespace muonrt {

namespace {

constexpr int kTryMs = 5000;  // per address: time to connect and to receive the greeting

enum class ReceiveResult { kAll, kClosed, kLate };

/// Receives a value of fixed size.
template <class T>
ReceiveResult receive_value(const Socket& s, T& value, Deadline deadline) {
  size_t got = 0;
  while (got < sizeof value) {
    if (!wait_for(s.fd(), POLLIN, deadline)) return ReceiveResult::kLate;
    const ssize_t n =
        recv(s.fd(), reinterpret_cast<char*>(&value) + got, sizeof value - got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) return ReceiveResult::kClosed;
    got += static_cast<size_t>(n);
  }
  return ReceiveResult::kAll;
}

/// Resolves the address of rank 0, at most once per second, because many ranks may use one name
/// server.
class RankZeroResolver {
 public:
  /// Returns no address if the name cannot be resolved, and sets `why` to the reason.
  const std::vector<SocketAddress>& of(const std::string& address, std::string& why) {
    if (again_.passed()) {
      known_ = look_up(address, why_);
      again_ = Deadline::in_ms(1000);
    }
    if (known_.empty()) why = why_;
    return known_;
  }

 private:
  std::vector<SocketAddress> known_;
  std::string why_;
  Deadline again_ = Deadline::in_ms(0);
};

std::vector<SocketRoute> routes_to(const std::vector<SocketAddress>& addresses,
                                   const std::string& interface) {
  if (!interface.empty() && !addresses.empty()) return routes_from(interface, addresses);
  std::vector<SocketRoute> out;
  for (const SocketAddress& to : addresses) out.push_back({{}, to});
  return out;
}

/// Returns a connection that rank 0 has greeted. If there is none but a later attempt may succeed,
/// returns an empty socket and sets `why` to the reason.
Socket try_connect_to_rank_0(const TcpRendezvous& rendezvous,
                             const std::vector<SocketAddress>& addresses, Greeting& greeting,
                             Deadline deadline, std::string& why) {
  const std::vector<SocketRoute> routes = routes_to(addresses, rendezvous.interface);
  auto left = static_cast<int>(routes.size());
  for (const SocketRoute& route : routes) {
    // If little time is left, the addresses share it.
    const Deadline try_deadline = Deadline::in_ms(poll_ms(deadline, kTryMs * left) / left);
    --left;
    Socket socket =
        try_connect(route.to, route.from.length > 0 ? &route.from : nullptr, try_deadline, why);
    if (!socket) continue;
    prepare(socket);
    switch (receive_value(socket, greeting, try_deadline)) {
      case ReceiveResult::kAll:
        if (greeting.magic == kGreeting) return socket;
        MUONRT_REQUIRE(left > 0, Status::kComm, "rendezvous: the program at ", rendezvous.address,
                       " is not muonrt; use the port of rank 0");
        why = "the program at that address is not muonrt";
        break;
      case ReceiveResult::kClosed:
        why = "the connection was closed";
        break;
      case ReceiveResult::kLate:
        why = "the program at that address sends nothing; perhaps it is not muonrt";
        break;
    }
  }
  return Socket();
}

/// Sends this rank's claim and waits until all ranks are connected. Returns false if the connection
/// ends before rank 0 has answered: rank 0 has ended, or has dropped the connection because too
/// many were waiting.
/// @param mine  equal in all attempts of this process, so that rank 0 can detect a second process.
bool ask(const Socket& socket, const TcpRendezvous& rendezvous, const std::string& secret,
         const Greeting& greeting, const Nonce& mine, Deadline deadline) {
  Claim claim{kClaim, rendezvous.rank, rendezvous.size, rendezvous.version, kProtocolVersion, mine,
              {}};
  claim.proof = proof_of(secret, greeting.nonce, claim);
  Answer answer{};
  const ReceiveResult result =
      send_value(socket, claim) ? receive_value(socket, answer, deadline) : ReceiveResult::kClosed;
  MUONRT_REQUIRE(result != ReceiveResult::kLate, Status::kTimeout, "rendezvous at ",
                 rendezvous.address, ": rank ", rendezvous.rank,
                 " is connected, but other ranks did not connect before the timeout; start all "
                 "ranks, or raise timeout_ms");
  if (result == ReceiveResult::kClosed) return false;
  const bool known =
      answer.magic == kAnswer &&
      equal_in_constant_time(answer.proof, proof_of(secret, greeting.nonce, claim.nonce, answer));
  MUONRT_REQUIRE(
      known, Status::kComm, "rendezvous at ", rendezvous.address, ": rank 0 and rank ",
      rendezvous.rank,
      " have different secrets, or data was corrupted in transit; pass the same secret on "
      "all ranks");
  answer.message.back() = 0;
  if (answer.status != 0)
    throw error_with_message(
        status_of_peer(answer.status), [&] { return std::string(answer.message.data()); }, 0, true);
  MUONRT_REQUIRE(answer.wire == kProtocolVersion, Status::kMismatch,
                 "rendezvous: the protocol version is ", protocol_version(answer.wire),
                 " on rank 0, but ", kProtocolVersion, " on rank ", rendezvous.rank,
                 "; use the same version of muonrt on all ranks");
  return true;
}

}  // namespace

void check_rank(int rank, int size) {
  MUONRT_REQUIRE(size >= 1 && rank >= 0 && rank < size, Status::kInvalidArgument,
                 "rendezvous: rank ", rank, " of ", size,
                 " ranks does not exist; set 0 <= rank < size");
}

void check_rendezvous(const TcpRendezvous& m) {
  check_rank(m.rank, m.size);
  MUONRT_REQUIRE(m.secret.size() >= kSecretBytes, Status::kInvalidArgument,
                 "rendezvous: the secret has ", m.secret.size(), " bytes; pass at least ",
                 kSecretBytes, " random bytes, the same on all ranks");
}

Socket connect_to_rank_0(const TcpRendezvous& rendezvous, Deadline deadline) {
  check_rendezvous(rendezvous);
  MUONRT_REQUIRE(port_of(rendezvous.address) != 0, Status::kInvalidArgument,
                 "rendezvous: address is '", rendezvous.address, "' on rank ", rendezvous.rank,
                 ", but only rank 0 may use port 0; pass the address that `listening` of rank 0 "
                 "receives");
  RankZeroResolver resolver;
  const auto search = [&](std::string& why) {
    return RankZeroContact{resolver.of(rendezvous.address, why), rendezvous.secret};
  };
  return connect_to_rank_0(rendezvous, search, deadline);
}

Socket connect_to_rank_0(const TcpRendezvous& rendezvous,
                         FunctionRef<RankZeroContact(std::string& why)> search, Deadline deadline) {
  std::string why = "no attempt was made";
  const Nonce mine = fresh_nonce();
  int tries = 0, unanswered = 0;
  using std::chrono::milliseconds;
  Backoff pauses(milliseconds(0), milliseconds(20), milliseconds(200));
  for (; tries == 0 || !deadline.passed(); pauses.pause(deadline.at())) {
    Greeting greeting{};
    std::string now;
    RankZeroContact contact;
    Socket socket = retry_while_out_of_memory(deadline, [&] {
      contact = search(now);
      return try_connect_to_rank_0(rendezvous, contact.addresses, greeting, deadline, now);
    });
    if (socket) {
      if (ask(socket, rendezvous, contact.secret, greeting, mine, deadline)) return socket;
      ++unanswered;
      retry_while_out_of_memory(deadline, [&] { why = "the connection was closed"; });
    } else if (tries == 0 || !deadline.passed()) {
      why.swap(now);  // the reason of an attempt that the deadline has not interrupted
    }
    ++tries;
  }
  MUONRT_REQUIRE(unanswered == 0, Status::kTimeout, "rendezvous at ", rendezvous.address,
                 ": rank 0 closed the connection of rank ", rendezvous.rank, " ", unanswered,
                 " times without an answer (last: ", why,
                 "); see the output of rank 0 for the cause");
  throw make_error(Status::kTimeout, "rendezvous: rank ", rendezvous.rank, " found no rank 0 at ",
                   rendezvous.address, " before the timeout (", why,
                   "); start rank 0 there, or raise timeout_ms");
}

}  // namespace muonrt
