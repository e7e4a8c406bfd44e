#include "comm/tcp/rendezvous.hpp"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>

#include "base/backoff.hpp"
#include "base/peer_status.hpp"

namespace muonrt {

namespace {

constexpr int kTryMs = 5000;  // time for one address: to connect and to receive the greeting
constexpr int kMaxUnanswered = 8;

/// Continues a handshake until it must wait again, it ends, or the deadline passes.
void advance(Dial& dial, const std::string& secret, Deadline deadline,
             const std::function<void()>& check) {
  while (dial.is_waiting() && wait_for(dial.socket.fd(), dial.events(), deadline, check))
    dial.advance(secret);
}

/// Returns a connection that rank 0 has greeted. If there is none but a later attempt may succeed,
/// returns a connection in a different state and sets `why` to the reason.
Dial find_rank_0(const Rendezvous& rendezvous, const Addresses& addresses, Deadline deadline,
                 std::string& why) {
  const auto routes = routes_from(rendezvous.interface, addresses);
  auto left = static_cast<int>(routes.size());
  for (const SocketRoute& route : routes) {
    // If little time is left, it is divided equally among the addresses.
    const Deadline try_deadline = Deadline::in_ms(poll_ms(deadline, kTryMs * left) / left);
    --left;
    Dial dial(route.to, route.from);
    advance(dial, "", try_deadline, rendezvous.check_interrupt);
    if (dial.state == Dial::State::kGreeted) return dial;
    MUONRT_REQUIRE(dial.state != Dial::State::kForeign || left > 0, Status::kComm,
                   "rendezvous: the program at ", rendezvous.address,
                   " is not muonrt; use the port of rank 0");
    why = dial.state == Dial::State::kConnecting  ? "no answer"
          : dial.state == Dial::State::kConnected ? "the program at that address sends nothing; "
                                                    "perhaps it is not muonrt"
                                                  : dial.why;
  }
  return Dial();
}

/// Listens for other ranks. Uses the interface that the user chose. Without one, uses the loopback
/// address if all ranks run on this machine, and otherwise all addresses.
void listen_for_ranks(const Rendezvous& rendezvous, const Addresses& rank_0,
                      const Socket& connection, TcpConnections& out) {
  const SocketAddress local = address_of(connection);
  const bool chosen = !rendezvous.interface.empty();
  if (chosen) out.from = local.with_port(0);
  if (out.size == 2 || out.listener) return;
  const auto listen = [&](const SocketAddress& at) {
    out.listener = std::move(listen_at({at.with_port(0)}, rendezvous.ports)[0]);
  };
  const auto is_local = [](const SocketAddress& a) { return a.is_loopback(); };
  if (chosen || std::all_of(rank_0.begin(), rank_0.end(), is_local)) return listen(local);
  try {
    listen(resolve("[::]:0")[0]);  // also accepts IPv4 connections
  } catch (const Error&) {
    listen(resolve("0.0.0.0:0")[0]);
  }
}

/// Sends this rank's claim, waits until all ranks are connected, and receives their addresses.
/// Returns false if the connection ends before rank 0 has answered. In this case rank 0 has exited,
/// or it has dropped the connection because too many connections were waiting.
bool join(Dial& dial, const Rendezvous& rendezvous, const Claim& claim, TcpConnections& out,
          Deadline deadline) {
  const std::string& secret = rendezvous.secret;
  dial.send_claim(secret, claim);
  advance(dial, secret, deadline, rendezvous.check_interrupt);
  MUONRT_REQUIRE(!dial.is_waiting(), Status::kTimeout, "rendezvous at ", rendezvous.address,
                 ": rank ", rendezvous.rank,
                 " is connected, but other ranks did not connect before the timeout; start all "
                 "ranks, or raise timeout_ms");
  MUONRT_REQUIRE(dial.state != Dial::State::kForeign, Status::kComm, "rendezvous at ",
                 rendezvous.address, ": rank 0 and rank ", rendezvous.rank,
                 " have different secrets, or data was corrupted in transit; pass the same secret "
                 "on all ranks");
  if (dial.state != Dial::State::kAnswered) return false;
  const Answer& answer = dial.answer;
  if (answer.status != 0)
    throw error_with_message(
        status_of_peer(answer.status), [&] { return std::string(answer.message.data()); }, 0, true);
  const size_t bytes = bytes_of(out.addresses).size();
  Progress received = Progress::kBlocked;
  for (size_t got = 0;
       received == Progress::kBlocked && wait_for(dial.socket.fd(), POLLIN, deadline);)
    received = receive_rest(dial.socket, out.addresses.data(), bytes, got);
  const Digest proof = keyed_digest(secret, {"addresses", bytes_of(out.addresses)});
  MUONRT_REQUIRE(
      received == Progress::kDone && equal_in_constant_time(answer.addresses, proof), Status::kComm,
      "rendezvous: rank ", out.rank,
      " lost the connection to rank 0 before it received the addresses of all ranks; see the "
      "output of rank 0");
  // A rank on rank 0's machine may have a loopback address. Ranks on other machines then connect to
  // the address that they use for rank 0.
  const SocketAddress rank_0 = peer_of(dial.socket);
  for (SocketAddress& at : out.addresses)
    if (at.is_loopback() && !rank_0.is_loopback()) at = rank_0.with_port(at.port());
  out.key = keyed_digest(secret, {"key", bytes_of(answer.run)});
  out.sockets[0] = std::move(dial.socket);
  return true;
}

TcpConnections accept_at_address(const Rendezvous& rendezvous, Deadline deadline) {
  std::vector<Socket> listeners;
  const Rendezvous here = retry_while_out_of_memory(deadline, [&] {
    const bool any_port = port_of(rendezvous.address) == 0;
    MUONRT_REQUIRE(!any_port || rendezvous.listening || rendezvous.size == 1,
                   Status::kInvalidArgument, "rendezvous: the address '", rendezvous.address,
                   "' asks for a free port, but listening is NULL, so the other ranks cannot learn "
                   "which one; set listening, or give a port");
    auto addresses = resolve(rendezvous.address);
    if (!rendezvous.interface.empty()) addresses = addresses_on(rendezvous.interface, addresses);
    Rendezvous out = rendezvous;
    listeners.clear();
    listeners = listen_at(addresses, rendezvous.ports);
    out.address.resize(out.address.rfind(':') + 1);
    out.address += std::to_string(address_of(listeners.front()).port());
    return out;
  });
  if (here.listening) here.listening(here.address);
  return accept_all_ranks(here, std::move(listeners), deadline);
}

}  // namespace

void check_rendezvous(const Rendezvous& m, const char* where) {
  MUONRT_REQUIRE(m.size >= 1 && m.rank >= 0 && m.rank < m.size, Status::kInvalidArgument, where,
                 ": rank ", m.rank, " of ", m.size, " ranks does not exist; set 0 <= rank < size");
  const auto [first, last] = m.ports;
  MUONRT_REQUIRE((first == 0 && last == 0) || (first >= 1 && first <= last && last <= 65535),
                 Status::kInvalidArgument, where, ": the ports are ", first, " to ", last,
                 "; set 1 <= first_port <= last_port <= 65535, or both to 0 for any free port");
  constexpr uint64_t kOther = 16;  // listeners, connections without a proof
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  // A directory_iterator is not used, because its constructor terminates the process if memory is
  // exhausted.
  uint64_t used = 0;
  if (DIR* const open = opendir("/proc/self/fd")) {
    while (readdir(open)) ++used;
    closedir(open);
    used -= 3;  // ".", ".." and the folder itself
  }
  const uint64_t needed = used + static_cast<uint64_t>(m.size) + kOther;
  MUONRT_REQUIRE(needed <= limit.rlim_cur, Status::kComm, "rendezvous: rank ", m.rank, " of ",
                 m.size, " may need ", needed, " open files (", used,
                 " are open now), but the limit of this process is ", limit.rlim_cur,
                 "; raise it to at least ", needed, " (ulimit -n)");
}

TcpConnections rendezvous_at_address(const Rendezvous& rendezvous, Deadline deadline) {
  check_rendezvous(rendezvous, "rendezvous");
  if (rendezvous.rank == 0) return accept_at_address(rendezvous, deadline);
  MUONRT_REQUIRE(port_of(rendezvous.address) != 0, Status::kInvalidArgument,
                 "rendezvous: address is '", rendezvous.address, "' on rank ", rendezvous.rank,
                 ", but only rank 0 may use port 0; pass the address that `listening` of rank 0 "
                 "receives");
  // Resolved at most once per second, because many ranks may use one name server.
  Addresses known;
  std::string problem;
  Deadline again = Deadline::in_ms(0);
  const auto search = [&](std::string& why) {
    if (again.passed()) {
      known = look_up(rendezvous.address, problem);
      again = Deadline::in_ms(1000);
    }
    if (known.empty()) why = problem;
    return known;
  };
  return connect_to_rank_0(rendezvous, search, deadline);
}

TcpConnections connect_to_rank_0(const Rendezvous& rendezvous,
                                 FunctionRef<Addresses(std::string& why)> search,
                                 Deadline deadline) {
  // The nonce is equal in all attempts of this process, so that rank 0 can detect a second process.
  Claim claim{.rank = rendezvous.rank,
              .size = rendezvous.size,
              .version = rendezvous.version,
              .nonce = fresh_nonce()};
  TcpConnections out;
  out.rank = rendezvous.rank;
  out.size = rendezvous.size;
  std::string why;
  int tries = 0, unanswered = 0;
  using std::chrono::milliseconds;
  Backoff pauses(milliseconds(0), milliseconds(20), milliseconds(200));
  for (; tries == 0 || !deadline.passed(); pauses.pause(deadline.at())) {
    if (rendezvous.check_interrupt) rendezvous.check_interrupt();
    std::string now;
    Dial dial = retry_while_out_of_memory(deadline, [&] {
      out.sockets.resize(1);  // before the claim, because rank 0 then accepts this rank
      out.addresses.resize(static_cast<size_t>(out.size));
      const Addresses rank_0 = search(now);
      Dial greeted = find_rank_0(rendezvous, rank_0, deadline, now);
      if (greeted.socket) listen_for_ranks(rendezvous, rank_0, greeted.socket, out);
      return greeted;
    });
    if (dial.socket) {
      if (out.listener) claim.port = address_of(out.listener).port();
      if (join(dial, rendezvous, claim, out, deadline)) return out;
      MUONRT_REQUIRE(++unanswered < kMaxUnanswered, Status::kComm, "rendezvous at ",
                     rendezvous.address, ": rank 0 closed the connection of rank ", rendezvous.rank,
                     " ", unanswered,
                     " times without an answer, as it does if the secrets "
                     "differ; pass the same secret on all ranks, and see the output of rank 0");
      why.swap(dial.why);
    } else if (tries == 0 || !deadline.passed()) {
      why.swap(now);  // the reason of the last attempt that the deadline did not interrupt
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
