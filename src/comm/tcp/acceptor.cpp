#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>
#include <memory>
#include <optional>
#include <thread>

#include "base/backoff.hpp"
#include "comm/tcp/handshake.hpp"
#include "comm/tcp/rendezvous.hpp"
#include "comm/transport.hpp"

namespace muonrt {

namespace {

constexpr int kClaimTimeoutMs = 5000;  // for one connection's claim
constexpr size_t kMaxUnauthenticated =
    256;                       // that may wait at once beside all ranks; the oldest then goes
constexpr int kAtOnce = 256;   // connections taken between two looks at the others
constexpr int kLateMs = 5000;  // in which ranks still hear what was not agreed on

/// Someone who has come and not been let in yet.
struct PendingConnection {
  Socket socket;
  Nonce greeted = fresh_nonce();
  Claim claim{};
  size_t got = 0;
  Deadline patience = Deadline::in_ms(kClaimTimeoutMs);
  enum class State { kWaits, kClaimed, kRejected };

  State read() {
    if (got == sizeof claim) return State::kClaimed;
    auto* const at = reinterpret_cast<char*>(&claim);
    const ssize_t n = recv(socket.fd(), at + got, sizeof claim - got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return State::kWaits;
    if (n <= 0) return State::kRejected;
    got += static_cast<size_t>(n);
    const size_t compare = std::min(got, claim.magic.size());
    if (std::memcmp(claim.magic.data(), kClaim.data(), compare) != 0) return State::kRejected;
    return got == sizeof claim ? State::kClaimed : State::kWaits;
  }
};

class Acceptor {
 public:
  Acceptor(const TcpRendezvous& meeting, Deadline deadline)
      : meeting_(meeting),
        deadline_(deadline),
        members_(static_cast<size_t>(meeting.size)),
        heard_(members_.size()),
        met_(members_.size()) {}

  /// Answers take no memory: those who have come hear of its want.
  std::vector<Socket> run(std::vector<Socket> listeners) {
    listeners_ = std::move(listeners);
    try {
      while (missing() > 0) {
        if (deadline_.passed()) throw error_with_message(Status::kTimeout, [&] { return late(); });
        retry_while_out_of_memory(deadline_, [&] { look(); });
      }
    } catch (const std::exception&) {
      const Error error = current_error();
      answer_all(error.status(), error.message());
      try {
        if (error.status() != Status::kTimeout) answer_late(error);
      } catch (const std::exception&) {  // the first error counts
      }
      throw;
    }
    answer_all(Status::kOk, "");
    for (size_t r = 1; r < members_.size(); ++r) met_[r] = std::move(members_[r].socket);
    return std::move(met_);
  }

 private:
  struct Member {
    Socket socket;
    Nonce greeted{}, claimed{};
    bool came = false;
  };

  int missing() const {
    return static_cast<int>(std::count_if(members_.begin() + 1, members_.end(),
                                          [](const Member& m) { return !m.socket; }));
  }

  std::string late() const {
    std::vector<int32_t> names;
    std::vector<int32_t> left;
    for (size_t r = 1; r < members_.size(); ++r) {
      if (!members_[r].socket) (members_[r].came ? left : names).push_back(static_cast<int32_t>(r));
    }
    std::string text = cat("rendezvous at ", meeting_.address, ", where rank 0 listens at ");
    for (const Socket& door : listeners_)
      text += cat(&door == &listeners_[0] ? "" : ", ", address_of(door).text());
    text += ": ";
    if (!names.empty()) {
      text += cat(name_ranks(names), " of ", meeting_.size, " did not come before the deadline");
    }
    if (!left.empty()) text += cat(names.empty() ? "" : "; ", name_ranks(left), " came and left");
    if (rejected_ > 0) {
      text += cat("; ", rejected_, " connections were turned away, the last one because ",
                  last_reason_);
    }
    // As where its /etc/hosts has this machine's own name as 127.0.1.1.
    const bool local = std::all_of(listeners_.begin(), listeners_.end(),
                                   [](const Socket& s) { return address_of(s).is_loopback(); });
    if (local)
      text +=
          "; only this machine reaches that: for ranks on others use another of its addresses, "
          "or interface_name on rank 0";
    return text + "; start all ranks with the same address and secret, or raise the timeout";
  }

  void look() {
    std::vector<pollfd> fds;
    for (const Socket& door : listeners_) fds.push_back({door.fd(), POLLIN, 0});
    for (const PendingConnection& n : pending_) fds.push_back({n.socket.fd(), POLLIN, 0});
    poll(fds.data(), fds.size(), poll_ms(deadline_, 200));
    size_t at = listeners_.size();
    for (auto n = pending_.begin(); n != pending_.end(); ++at) {
      n = attend(*n, fds[at].revents != 0) ? std::next(n) : pending_.erase(n);
    }
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (fds[i].revents) admit(listeners_[i]);
    }
    for (Member& m : members_) {
      if (m.socket && has_gone(m.socket)) m.socket = Socket();
    }
  }

  void admit(const Socket& door) {
    for (int i = 0; i < kAtOnce; ++i) {
      Socket socket(
          [&] { return accept4(door.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
      if (!socket && (errno == EMFILE || errno == ENFILE)) {
        const int error = errno;
        // The system says so too where nobody waits: whoever took the last file may stay then.
        if (!wait_for(door.fd(), POLLIN, Deadline::in_ms(0))) return;
        make_room_for_file(error);
        continue;
      }
      if (!socket) {
        const bool passes = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
        if (!passes)
          std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the door calls on
        return;
      }
      if (pending_.size() >= kMaxUnauthenticated + members_.size()) make_room();
      pending_.emplace_back();
      pending_.back().socket = std::move(socket);
      prepare(pending_.back().socket);
      if (!send_value(pending_.back().socket, Greeting{kGreeting, pending_.back().greeted}))
        pending_.pop_back();
    }
  }

  /// The one who came first goes, unless it has said by now who it is.
  void make_room() {
    if (attend(pending_.front(), true)) reject_connection("too many came at once");
    pending_.pop_front();
  }

  void make_room_for_file(int error) {
    if (pending_.empty() && failed_) throw *failed_;
    MUONRT_REQUIRE(!pending_.empty(), Status::kComm, "rendezvous at ", meeting_.address,
                   ": no connection can be taken (", errno_text(error),
                   "); raise the limit of open files (ulimit -n) above the number of ranks");
    make_room();
  }

  /// Whether the connection stays in the waiting room.
  bool attend(PendingConnection& n, bool ready) {
    // One whose claim is here says no more: looked at again where there was no memory to answer.
    if (ready || n.got == sizeof n.claim) {
      switch (n.read()) {
        case PendingConnection::State::kClaimed:
          examine(n);
          return false;
        case PendingConnection::State::kRejected:
          reject_connection("it did not speak as a rank of muonrt does");
          return false;
        case PendingConnection::State::kWaits:
          break;
      }
    }
    if (!n.patience.passed()) return true;
    reject_connection("it said nothing");
    return false;
  }

  void examine(PendingConnection& n) {
    const Claim& c = n.claim;
    if (!equal_in_constant_time(c.proof, proof_of(meeting_.secret, n.greeted, c))) {
      reject_connection("its secret is another one");
      send_value(n.socket, make_answer(meeting_.secret, n.greeted, c.nonce, Status::kComm,
                                       "the secrets differ"));
      return;
    }
    // One who knows the secret is one of us, and what is wrong with it concerns all.
    const auto tell_it = [&](Status status, const std::string& text) {
      if (send_value(n.socket, make_answer(meeting_.secret, n.greeted, c.nonce, status, text)))
        hears(c.rank);
    };
    if (failed_) return tell_it(failed_->status(), failed_->message());
    const auto refuse = [&](const std::string& text) {
      tell_it(Status::kMismatch, text);
      throw Error(Status::kMismatch, text);
    };
    if (c.version != meeting_.version) {
      refuse(cat("rendezvous: rank ", c.rank, " runs version ", c.version, " of muonrt, rank 0 ",
                 meeting_.version, "; use one version on all ranks"));
    }
    if (c.wire != kProtocolVersion) {
      refuse(cat("rendezvous: rank ", c.rank, " speaks version ", protocol_version(c.wire),
                 " of what goes over the wire, rank 0 ", kProtocolVersion,
                 "; use one version of muonrt on all ranks"));
    }
    if (c.size != meeting_.size) {
      refuse(cat("rendezvous: rank ", c.rank, " believes in ", c.size, " ranks, rank 0 in ",
                 meeting_.size, "; start all with the same number"));
    }
    if (c.rank < 1 || c.rank >= meeting_.size) {
      refuse(cat("rendezvous: a process says it is rank ", c.rank, " (1 to ", meeting_.size - 1,
                 " may come to rank 0); give each rank a number of its own"));
    }
    Member& member = members_[static_cast<size_t>(c.rank)];
    // One whose connection has broken comes again, perhaps before that was looked at, or where this
    // end is still whole: then by the number that a process keeps.
    if (member.socket && member.claimed != c.nonce && !has_gone(member.socket)) {
      refuse(cat("rendezvous: two processes say they are rank ", c.rank,
                 "; give each rank a number of its own"));
    }
    member = {std::move(n.socket), n.greeted, c.nonce, true};
  }

  void reject_connection(const char* reason) {
    ++rejected_;
    last_reason_ = reason;
  }

  static bool has_gone(const Socket& s) {
    char byte = 0;
    const ssize_t n = recv(s.fd(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
  }

  void answer_all(Status status, const std::string& message) {
    for (size_t r = 1; r < members_.size(); ++r) {
      const Member& m = members_[r];
      if (m.socket &&
          send_value(m.socket, make_answer(meeting_.secret, m.greeted, m.claimed, status, message)))
        hears(static_cast<int32_t>(r));
    }
  }

  void hears(int32_t rank) {
    if (rank >= 1 && rank < meeting_.size) heard_[static_cast<size_t>(rank)] = true;
  }

  /// Those who come after the meeting has failed hear it too, instead of looking for a rank 0 that
  /// has left until their own deadline.
  void answer_late(const Error& error) {
    failed_ = error;
    for (Member& m : members_) m.socket = Socket();  // they have heard; room for other files
    const Deadline late = Deadline::in_ms(kLateMs);
    const auto all_heard = [&] { return std::count(heard_.begin() + 1, heard_.end(), false) == 0; };
    while (!all_heard() && !late.passed() && !deadline_.passed())
      retry_while_out_of_memory(late, [&] { look(); });
  }

  const TcpRendezvous& meeting_;
  const Deadline deadline_;
  std::optional<Error> failed_;
  std::vector<Socket> listeners_;
  std::vector<Member> members_;
  std::vector<bool> heard_;  // ranks that have rank 0's answer
  std::vector<Socket> met_;  // what `run` returns
  std::list<PendingConnection> pending_;
  int64_t rejected_ = 0;
  const char* last_reason_ = "";
};

}  // namespace

std::vector<Socket> accept_all_ranks(const TcpRendezvous& meeting, Deadline deadline) {
  check_rendezvous(meeting);
  const auto addresses = retry_while_out_of_memory(deadline, [&] {
    auto named = resolve(meeting.address);
    return meeting.interface.empty() ? named : addresses_on(meeting.interface, named);
  });
  const bool any_port = port_of(meeting.address) == 0;
  MUONRT_REQUIRE(!any_port || meeting.listening || meeting.size == 1, Status::kInvalidArgument,
                 "rendezvous: address is '", meeting.address,
                 "' and nobody is told which port that is; pass `listening`, or a port");
  const int backlog = std::max(64, meeting.size);
  auto listeners = retry_while_out_of_memory(deadline, [&] {
    return any_port ? listen_at_free_port(addresses, backlog) : listen_at(addresses, backlog);
  });
  const TcpRendezvous here = retry_while_out_of_memory(deadline, [&] {
    TcpRendezvous out = meeting;
    out.address = with_port(meeting.address, address_of(listeners.front()).port());
    return out;
  });
  if (here.listening) here.listening(here.address);
  return accept_all_ranks(here, std::move(listeners), deadline);
}

std::vector<Socket> accept_all_ranks(const TcpRendezvous& rendezvous, std::vector<Socket> listeners,
                                     Deadline deadline) {
  const auto reception = retry_while_out_of_memory(
      deadline, [&] { return std::make_unique<Acceptor>(rendezvous, deadline); });
  return reception->run(std::move(listeners));
}

}  // namespace muonrt
