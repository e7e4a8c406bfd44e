#include "comm/tcp/rendezvous.hpp"

#include <dirent.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>

#include "base/backoff.hpp"
#include "base/peer_status.hpp"
#include "comm/tcp/handshake.hpp"

namespace muonrt {

namespace {

constexpr int kTryMs = 5000;  // per address: time to connect and to receive the greeting

/// Returns kPart after the deadline.
Received receive_bytes(const Socket& s, void* data, size_t bytes, Deadline deadline,
                       const std::function<void()>& check) {
  for (size_t got = 0; wait_for(s.fd(), POLLIN, deadline, check);) {
    const Received result = receive_rest(s, data, bytes, got);
    if (result != Received::kPart) return result;
  }
  return Received::kPart;
}

template <class T>
Received receive_value(const Socket& s, T& value, Deadline deadline,
                       const std::function<void()>& check) {
  return receive_bytes(s, &value, sizeof value, deadline, check);
}

/// Returns a connection that rank 0 has greeted. If there is none but a later attempt may succeed,
/// returns an empty socket and sets `why` to the reason.
Socket try_connect_to_rank_0(const TcpRendezvous& rendezvous,
                             const std::vector<SocketAddress>& addresses, Greeting& greeting,
                             Deadline deadline, std::string& why) {
  const auto routes = routes_from(rendezvous.interface, addresses);
  auto left = static_cast<int>(routes.size());
  for (const SocketRoute& route : routes) {
    // If little time is left, the addresses share it.
    const Deadline try_deadline = Deadline::in_ms(poll_ms(deadline, kTryMs * left) / left);
    --left;
    Socket socket = begin_connect(route.to, route.from, why);
    if (!socket) continue;
    if (!wait_for(socket.fd(), POLLOUT, try_deadline, rendezvous.check_interrupt)) {
      why = "no answer";
      continue;
    }
    if (!is_connected(socket, why)) continue;
    prepare(socket);
    switch (receive_value(socket, greeting, try_deadline, rendezvous.check_interrupt)) {
      case Received::kAll:
        if (greeting.magic == kGreeting) return socket;
        MUONRT_REQUIRE(left > 0, Status::kComm, "rendezvous: the program at ", rendezvous.address,
                       " is not muonrt; use the port of rank 0");
        why = "the program at that address is not muonrt";
        break;
      case Received::kEnded:
        why = "the connection was closed";
        break;
      case Received::kPart:
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
         const Greeting& greeting, const Nonce& mine, uint16_t port, Deadline deadline) {
  Claim claim{
      kClaim, rendezvous.rank, rendezvous.size, rendezvous.version, kProtocolVersion, port, 0, mine,
      {}};
  claim.proof = proof_of(secret, greeting.nonce, claim);
  Answer answer{};
  const Received result = send_value(socket, claim)
                              ? receive_value(socket, answer, deadline, rendezvous.check_interrupt)
                              : Received::kEnded;
  MUONRT_REQUIRE(result != Received::kPart, Status::kTimeout, "rendezvous at ", rendezvous.address,
                 ": rank ", rendezvous.rank,
                 " is connected, but other ranks did not connect before the timeout; start all "
                 "ranks, or raise timeout_ms");
  if (result == Received::kEnded) return false;
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
  return true;
}

/// Listens for higher ranks: at the interface that the user chose; at the loopback address if all
/// ranks run on this machine; else at all addresses.
void listen_for_ranks(const TcpRendezvous& rendezvous, const std::vector<SocketAddress>& rank_0,
                      const Socket& connection, TcpConnections& out) {
  const bool last = rendezvous.rank == rendezvous.size - 1;
  if (last || out.listener) return;
  const SocketAddress local = address_of(connection);
  const bool here = std::all_of(rank_0.begin(), rank_0.end(),
                                [](const SocketAddress& a) { return a.is_loopback(); });
  if (!rendezvous.interface.empty()) out.from = local.with_port(0);
  const auto listen = [&](const SocketAddress& at) {
    out.listener =
        std::move(listen_in_range({at}, rendezvous.ports, std::max(64, rendezvous.size))[0]);
  };
  if (here || !rendezvous.interface.empty()) return listen(local);
  try {
    listen(SocketAddress::any(AF_INET6));  // IPv4, too
  } catch (const Error&) {
    listen(SocketAddress::any(AF_INET));
  }
}

/// Receives the addresses of all ranks. A rank on rank 0's machine may have a loopback address;
/// then other machines connect to the address at which they reach rank 0.
void read_addresses(const Socket& socket, const std::string& secret, TcpConnections& out,
                    Deadline deadline) {
  AddressTable table{};
  const bool got =
      receive_value(socket, table, deadline, {}) == Received::kAll &&
      receive_bytes(socket, out.addresses.data(), out.addresses.size() * sizeof(SocketAddress),
                    deadline, {}) == Received::kAll;
  MUONRT_REQUIRE(got && equal_in_constant_time(table.proof, proof_of(secret, table, out.addresses)),
                 Status::kComm, "rendezvous: rank ", out.rank,
                 " lost the connection to rank 0 before it received the addresses of all ranks; "
                 "see the output of rank 0");
  const SocketAddress rank_0 = peer_of(socket);
  for (SocketAddress& at : out.addresses)
    if (at.is_loopback() && !rank_0.is_loopback()) at = rank_0.with_port(at.port);
  out.key = key_of(secret, table);
}

}  // namespace

void check_rank(int rank, int size) {
  MUONRT_REQUIRE(size >= 1 && rank >= 0 && rank < size, Status::kInvalidArgument,
                 "rendezvous: rank ", rank, " of ", size,
                 " ranks does not exist; set 0 <= rank < size");
}

void check_ports(PortRange ports, const char* where) {
  const bool any = ports.first == 0 && ports.last == 0;
  MUONRT_REQUIRE(any || (ports.first >= 1 && ports.first <= ports.last && ports.last <= 65535),
                 Status::kInvalidArgument, where, ": the ports are ", ports.first, " to ",
                 ports.last,
                 "; set 1 <= first_port <= last_port <= 65535, or both to 0 for any "
                 "free port");
}

void check_rendezvous(const TcpRendezvous& m) {
  check_rank(m.rank, m.size);
  MUONRT_REQUIRE(m.secret.size() >= kSecretBytes, Status::kInvalidArgument,
                 "rendezvous: the secret has ", m.secret.size(), " bytes; pass at least ",
                 kSecretBytes, " random bytes, the same on all ranks");
  check_ports(m.ports, "rendezvous");
}

void check_open_files(int rank, int size) {
  constexpr uint64_t kOther = 16;  // listeners, connections without a proof
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  // Not a directory_iterator: without memory its constructor ends the process.
  uint64_t used = 0;
  if (DIR* const open = opendir("/proc/self/fd")) {
    while (readdir(open)) ++used;
    closedir(open);
    used -= 3;  // ".", ".." and the folder itself
  }
  const uint64_t needed = used + static_cast<uint64_t>(size) + kOther;
  MUONRT_REQUIRE(needed <= limit.rlim_cur, Status::kComm, "rendezvous: rank ", rank, " of ", size,
                 " may need ", needed, " open files (", used,
                 " are open now), but the limit of this process is ", limit.rlim_cur,
                 "; raise it to at least ", needed, " (ulimit -n)");
}

TcpConnections connect_to_rank_0(const TcpRendezvous& rendezvous, Deadline deadline) {
  check_rendezvous(rendezvous);
  MUONRT_REQUIRE(port_of(rendezvous.address) != 0, Status::kInvalidArgument,
                 "rendezvous: address is '", rendezvous.address, "' on rank ", rendezvous.rank,
                 ", but only rank 0 may use port 0; pass the address that `listening` of rank 0 "
                 "receives");
  // At most once per second, because many ranks may use one name server.
  std::vector<SocketAddress> known;
  std::string problem;
  Deadline again = Deadline::in_ms(0);
  const auto search = [&](std::string& why) {
    if (again.passed()) {
      known = look_up(rendezvous.address, problem);
      again = Deadline::in_ms(1000);
    }
    if (known.empty()) why = problem;
    return RankZeroContact{known, rendezvous.secret};
  };
  return connect_to_rank_0(rendezvous, search, deadline);
}

TcpConnections connect_to_rank_0(const TcpRendezvous& rendezvous,
                                 FunctionRef<RankZeroContact(std::string& why)> search,
                                 Deadline deadline) {
  std::string why;
  const Nonce mine = fresh_nonce();
  int tries = 0, unanswered = 0;
  TcpConnections out;
  out.rank = rendezvous.rank;
  out.size = rendezvous.size;
  retry_while_out_of_memory(deadline, [&] {  // before rank 0 accepts this rank
    out.sockets.resize(1);
    out.addresses.resize(static_cast<size_t>(out.size));
  });
  using std::chrono::milliseconds;
  Backoff pauses(milliseconds(0), milliseconds(20), milliseconds(200));
  for (; tries == 0 || !deadline.passed(); pauses.pause(deadline.at())) {
    if (rendezvous.check_interrupt) rendezvous.check_interrupt();
    Greeting greeting{};
    std::string now;
    RankZeroContact contact;
    Socket socket = retry_while_out_of_memory(deadline, [&] {
      contact = search(now);
      Socket greeted =
          try_connect_to_rank_0(rendezvous, contact.addresses, greeting, deadline, now);
      if (greeted) listen_for_ranks(rendezvous, contact.addresses, greeted, out);
      return greeted;
    });
    if (socket) {
      const uint16_t port = out.listener ? address_of(out.listener).port : uint16_t{0};
      if (ask(socket, rendezvous, contact.secret, greeting, mine, port, deadline)) {
        read_addresses(socket, contact.secret, out, deadline);
        out.sockets[0] = std::move(socket);
        return out;
      }
      MUONRT_REQUIRE(++unanswered < kMaxUnanswered, Status::kComm, "rendezvous at ",
                     rendezvous.address, ": rank 0 closed the connection of rank ", rendezvous.rank,
                     " ", unanswered,
                     " times without an answer, as it does if the secrets "
                     "differ; pass the same secret on all ranks, and see the output of rank 0");
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
                   rendezvous.address, " before the timeout (",
                   why.empty() ? "no attempt was made" : why,
                   "); start rank 0 there, or raise timeout_ms");
}

}  // namespace muonrt
