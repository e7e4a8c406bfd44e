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

constexpr int kTryMs = 5000;  // for a connection and the greeting, before the next address

enum class ReceiveResult { kAll, kClosed, kLate };

/// Reads a value of fixed size.
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

/// Where rank 0 is, asked for no more than once a second: many ranks may ask one name server.
class RankZeroResolver {
 public:
  /// None if the name is not known; then `why` says so.
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

/// A first connection, or none if it is worth another try; then `why` says why.
Socket try_connect_to_rank_0(const TcpRendezvous& meeting,
                             const std::vector<SocketAddress>& addresses, Greeting& greeting,
                             Deadline deadline, std::string& why) {
  const std::vector<SocketRoute> routes = routes_to(addresses, meeting.interface);
  auto left = static_cast<int>(routes.size());
  for (const SocketRoute& route : routes) {
    // Each gets its share of a short time.
    const Deadline patience = Deadline::in_ms(poll_ms(deadline, kTryMs * left) / left);
    --left;
    Socket socket =
        try_connect(route.to, route.from.length > 0 ? &route.from : nullptr, patience, why);
    if (!socket) continue;
    prepare(socket);
    switch (receive_value(socket, greeting, patience)) {
      case ReceiveResult::kAll:
        if (greeting.magic == kGreeting) return socket;
        MUONRT_REQUIRE(left > 0, Status::kComm, "rendezvous: at ", meeting.address,
                       " something answers that is not muonrt; use the port of rank 0");
        why = "something answers that is not muonrt";
        break;
      case ReceiveResult::kClosed:
        why = "the connection was closed";
        break;
      case ReceiveResult::kLate:
        why = "it accepts connections and says nothing; perhaps it is not muonrt";
        break;
    }
  }
  return Socket();
}

/// Says who this rank is and waits for the others; false if the connection ends before rank 0 has
/// answered, which it does on whom it has no room for, and when it has itself ended.
/// @param mine  the same in all tries of this process: another one's is a second process.
bool ask(const Socket& socket, const TcpRendezvous& meeting, const std::string& secret,
         const Greeting& greeting, const Nonce& mine, Deadline deadline) {
  Claim claim{kClaim, meeting.rank, meeting.size, meeting.version, kProtocolVersion, mine, {}};
  claim.proof = proof_of(secret, greeting.nonce, claim);
  Answer answer{};
  const ReceiveResult heard =
      send_value(socket, claim) ? receive_value(socket, answer, deadline) : ReceiveResult::kClosed;
  MUONRT_REQUIRE(heard != ReceiveResult::kLate, Status::kTimeout, "rendezvous at ", meeting.address,
                 ": rank ", meeting.rank,
                 " has come, but not all others before the deadline; look for a rank that is "
                 "missing, or raise the timeout");
  if (heard == ReceiveResult::kClosed) return false;
  const bool known =
      answer.magic == kAnswer &&
      equal_in_constant_time(answer.proof, proof_of(secret, greeting.nonce, claim.nonce, answer));
  MUONRT_REQUIRE(known, Status::kComm, "rendezvous at ", meeting.address, ": rank 0 and rank ",
                 meeting.rank,
                 " have different secrets, or what they said changed on its way; give all ranks "
                 "the same");
  answer.message.back() = 0;
  if (answer.status != 0)
    throw error_with_message(
        status_of_peer(answer.status), [&] { return std::string(answer.message.data()); }, 0, true);
  MUONRT_REQUIRE(answer.wire == kProtocolVersion, Status::kMismatch,
                 "rendezvous: rank 0 speaks version ", protocol_version(answer.wire),
                 " of what goes over the wire, rank ", meeting.rank, " ", kProtocolVersion,
                 "; use one version of muonrt on all ranks");
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
                 "rendezvous: the secret has ", m.secret.size(), " bytes (at least ", kSecretBytes,
                 "); draw a longer one for each run and give it to all ranks");
}

Socket connect_to_rank_0(const TcpRendezvous& meeting, Deadline deadline) {
  check_rendezvous(meeting);
  MUONRT_REQUIRE(port_of(meeting.address) != 0, Status::kInvalidArgument,
                 "rendezvous: address is '", meeting.address, "' on rank ", meeting.rank,
                 " (rank 0 alone may have port 0); pass the address that rank 0's `listening` is "
                 "told");
  RankZeroResolver whereabouts;
  const auto search = [&](std::string& why) {
    return RankZeroContact{whereabouts.of(meeting.address, why), meeting.secret};
  };
  return connect_to_rank_0(meeting, search, deadline);
}

Socket connect_to_rank_0(const TcpRendezvous& meeting,
                         FunctionRef<RankZeroContact(std::string& why)> search, Deadline deadline) {
  std::string why = "no try was made";
  const Nonce mine = fresh_nonce();
  int tries = 0, unanswered = 0;
  using std::chrono::milliseconds;
  Backoff pauses(milliseconds(0), milliseconds(20), milliseconds(200));
  for (; tries == 0 || !deadline.passed(); pauses.pause(deadline.at())) {
    Greeting greeting{};
    std::string now;
    RankZeroContact lead;
    Socket socket = retry_while_out_of_memory(deadline, [&] {
      lead = search(now);
      return try_connect_to_rank_0(meeting, lead.addresses, greeting, deadline, now);
    });
    if (socket) {
      if (ask(socket, meeting, lead.secret, greeting, mine, deadline)) return socket;
      ++unanswered;
      retry_while_out_of_memory(deadline, [&] { why = "the connection was closed"; });
    } else if (tries == 0 || !deadline.passed()) {
      why.swap(now);  // of a try that the deadline has not cut short
    }
    ++tries;
  }
  MUONRT_REQUIRE(unanswered == 0, Status::kTimeout, "rendezvous at ", meeting.address, ": rank ",
                 meeting.rank, " came to rank 0, which ended the connection ", unanswered,
                 " times without an answer (last: ", why,
                 "); look at rank 0's messages, it may have ended");
  throw make_error(Status::kTimeout, "rendezvous: rank ", meeting.rank, " found no rank 0 at ",
                   meeting.address, " before the deadline (", why,
                   "); start rank 0 there, or raise the timeout");
}

}  // namespace muonrt
