#include "comm/rendezvous.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <thread>

#include "comm/handshake.hpp"
#include "comm/transport.hpp"

namespace muonrt {

namespace {

constexpr int kPatienceMs = 5000;   // for one newcomer's claim
constexpr size_t kStrangers = 256;  // that may be waiting at once; the oldest then goes

/// All of `value`, or false: it is small, so a connection that does not take it is as good as dead.
template <class T>
bool tell(const Socket& s, const T& value) {
  return send(s.fd(), &value, sizeof value, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof value);
}

/// Someone who has come and not been let in yet.
struct Newcomer {
  Socket socket;
  Nonce greeted = fresh_nonce();
  Claim claim{};
  size_t got = 0;
  Deadline patience = Deadline::in_ms(kPatienceMs);
  enum class State { kWaits, kClaimed, kHopeless };

  State read() {
    auto* const at = reinterpret_cast<char*>(&claim);
    const ssize_t n = recv(socket.fd(), at + got, sizeof claim - got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return State::kWaits;
    if (n <= 0) return State::kHopeless;
    got += static_cast<size_t>(n);
    const size_t compare = std::min(got, claim.magic.size());
    if (std::memcmp(claim.magic.data(), kClaim.data(), compare) != 0) return State::kHopeless;
    return got == sizeof claim ? State::kClaimed : State::kWaits;
  }
};

class Reception {
 public:
  Reception(const TcpMeeting& meeting, Deadline deadline)
      : meeting_(meeting), deadline_(deadline), members_(static_cast<size_t>(meeting.size)) {
    const auto addresses = resolve(meeting.address);
    door_ = listen_at(addresses.front(), meeting.interface, std::max(64, meeting.size));
  }

  std::vector<Socket> run() {
    try {
      while (missing() > 0) {
        MUONRT_REQUIRE(!deadline_.passed(), Status::kTimeout, late());
        look();
      }
    } catch (const Error& error) {
      answer_all(error.status(), error.message());
      throw;
    }
    answer_all(Status::kOk, "");
    std::vector<Socket> out;
    for (Member& m : members_) out.push_back(std::move(m.socket));
    return out;
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
    std::string text = cat("rendezvous at ", meeting_.address, ": ");
    if (!names.empty()) {
      text += cat(name_ranks(names), " of ", meeting_.size, " did not come before the deadline");
    }
    if (!left.empty()) text += cat(names.empty() ? "" : "; ", name_ranks(left), " came and left");
    if (turned_away_ > 0) {
      text += cat("; ", turned_away_, " connections were turned away, the last one because ",
                  last_reason_);
    }
    return text + "; start all ranks with the same address and secret, or raise the timeout";
  }

  void look() {
    std::vector<pollfd> fds = {{door_.fd(), POLLIN, 0}};
    for (const Newcomer& n : newcomers_) fds.push_back({n.socket.fd(), POLLIN, 0});
    poll(fds.data(), fds.size(), poll_ms(deadline_, 200));
    size_t at = 1;
    for (auto n = newcomers_.begin(); n != newcomers_.end(); ++at) {
      n = attend(*n, fds[at].revents != 0) ? std::next(n) : newcomers_.erase(n);
    }
    if (fds[0].revents) admit();
    for (Member& m : members_) {
      if (m.socket && has_gone(m.socket)) m.socket = Socket();
    }
  }

  void admit() {
    while (true) {
      Socket socket(accept4(door_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) return;
      if (newcomers_.size() >= kStrangers) {
        turn_away("too many came at once");
        newcomers_.pop_front();
      }
      newcomers_.emplace_back();
      newcomers_.back().socket = std::move(socket);
      prepare(newcomers_.back().socket);
      if (!tell(newcomers_.back().socket, Greeting{kGreeting, newcomers_.back().greeted}))
        newcomers_.pop_back();
    }
  }

  /// Whether the newcomer stays in the waiting room.
  bool attend(Newcomer& n, bool ready) {
    if (ready) {
      switch (n.read()) {
        case Newcomer::State::kClaimed:
          examine(n);
          return false;
        case Newcomer::State::kHopeless:
          turn_away("it did not speak as a rank of muonrt does");
          return false;
        case Newcomer::State::kWaits:
          break;
      }
    }
    if (!n.patience.passed()) return true;
    turn_away("it said nothing");
    return false;
  }

  void examine(Newcomer& n) {
    const Claim& c = n.claim;
    if (!equal_in_constant_time(c.proof, proof_of(meeting_.secret, n.greeted, c))) {
      turn_away("its secret is another one");
      tell(n.socket,
           make_answer(meeting_.secret, n.greeted, c.nonce, Status::kComm, "the secrets differ"));
      return;
    }
    // One who knows the secret is one of us, and what is wrong with it concerns all.
    const auto refuse = [&](const std::string& text) {
      tell(n.socket, make_answer(meeting_.secret, n.greeted, c.nonce, Status::kMismatch, text));
      throw Error(Status::kMismatch, text);
    };
    if (c.version != meeting_.version) {
      refuse(cat("rendezvous: rank ", c.rank, " runs version ", c.version, " of muonrt, rank 0 ",
                 meeting_.version, "; use one version on all ranks"));
    }
    if (c.size != meeting_.size) {
      refuse(cat("rendezvous: rank ", c.rank, " believes in ", c.size, " ranks, rank 0 in ",
                 meeting_.size, "; start all with the same number"));
    }
    if (c.rank < 1 || c.rank >= meeting_.size || members_[static_cast<size_t>(c.rank)].socket) {
      refuse(cat("rendezvous: two processes say they are rank ", c.rank,
                 "; give each rank a number of its own"));
    }
    members_[static_cast<size_t>(c.rank)] = {std::move(n.socket), n.greeted, c.nonce, true};
  }

  void turn_away(const char* reason) {
    ++turned_away_;
    last_reason_ = reason;
  }

  static bool has_gone(const Socket& s) {
    char byte = 0;
    const ssize_t n = recv(s.fd(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
  }

  void answer_all(Status status, const std::string& message) {
    for (const Member& m : members_) {
      if (m.socket)
        tell(m.socket, make_answer(meeting_.secret, m.greeted, m.claimed, status, message));
    }
  }

  const TcpMeeting& meeting_;
  const Deadline deadline_;
  Socket door_;
  std::vector<Member> members_;
  std::list<Newcomer> newcomers_;
  int64_t turned_away_ = 0;
  std::string last_reason_;
};

enum class Heard { kAll, kClosed, kLate };

/// Reads a value of fixed size.
template <class T>
Heard hear(const Socket& s, T& value, Deadline deadline) {
  size_t got = 0;
  while (got < sizeof value) {
    if (!wait_for(s.fd(), POLLIN, deadline)) return Heard::kLate;
    const ssize_t n =
        recv(s.fd(), reinterpret_cast<char*>(&value) + got, sizeof value - got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) return Heard::kClosed;
    got += static_cast<size_t>(n);
  }
  return Heard::kAll;
}

/// A first connection, or none if it is worth another try; then `why` says why.
Socket knock(const TcpMeeting& meeting, Greeting& greeting, Deadline deadline, std::string& why) {
  for (const SocketAddress& address : resolve(meeting.address)) {
    Socket socket = try_connect(address, meeting.interface, deadline, why);
    if (!socket) continue;
    prepare(socket);
    switch (hear(socket, greeting, deadline)) {
      case Heard::kAll:
        MUONRT_REQUIRE(greeting.magic == kGreeting, Status::kComm, "rendezvous: at ",
                       meeting.address,
                       " something answers that is not muonrt; use the port of rank 0");
        return socket;
      case Heard::kClosed:
        why = "the connection was closed";
        break;
      case Heard::kLate:
        why = "it accepts connections and says nothing; perhaps it is not muonrt";
        break;
    }
  }
  return Socket();
}

}  // namespace

void check_meeting(const TcpMeeting& m) {
  MUONRT_REQUIRE(m.size >= 1 && m.rank >= 0 && m.rank < m.size, Status::kInvalidArgument,
                 "rendezvous: rank ", m.rank, " of ", m.size,
                 " ranks does not exist; set 0 <= rank < size");
  MUONRT_REQUIRE(m.secret.size() >= kSecretBytes, Status::kInvalidArgument,
                 "rendezvous: the secret has ", m.secret.size(), " bytes (at least ", kSecretBytes,
                 "); draw a longer one for each run and give it to all ranks");
}

std::vector<Socket> meet_all(const TcpMeeting& meeting, Deadline deadline) {
  check_meeting(meeting);
  return Reception(meeting, deadline).run();
}

Socket meet_rank_0(const TcpMeeting& meeting, Deadline deadline) {
  check_meeting(meeting);
  std::string why = "no try was made";
  while (true) {
    Greeting greeting{};
    Socket socket = knock(meeting, greeting, deadline, why);
    if (!socket) {
      MUONRT_REQUIRE(!deadline.passed(), Status::kTimeout, "rendezvous: rank ", meeting.rank,
                     " found no rank 0 at ", meeting.address, " before the deadline (", why,
                     "); start rank 0 there, or raise the timeout");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      continue;
    }
    Claim claim{kClaim, meeting.rank, meeting.size, meeting.version, 0, fresh_nonce(), {}};
    claim.proof = proof_of(meeting.secret, greeting.nonce, claim);
    Answer answer{};
    const Heard heard = tell(socket, claim) ? hear(socket, answer, deadline) : Heard::kClosed;
    MUONRT_REQUIRE(heard != Heard::kLate, Status::kTimeout, "rendezvous at ", meeting.address,
                   ": rank ", meeting.rank,
                   " has come, but not all others before the deadline; look for a rank that is "
                   "missing, or raise the timeout");
    MUONRT_REQUIRE(heard == Heard::kAll && answer.magic == kAnswer, Status::kComm, "rendezvous at ",
                   meeting.address, ": rank 0 turned rank ", meeting.rank,
                   " away without a word; look at its messages");
    MUONRT_REQUIRE(equal_in_constant_time(
                       answer.proof, proof_of(meeting.secret, greeting.nonce, claim.nonce, answer)),
                   Status::kComm, "rendezvous at ", meeting.address, ": rank 0 and rank ",
                   meeting.rank, " have different secrets; give all ranks the same");
    answer.message.back() = 0;
    if (answer.status != 0)
      throw Error(static_cast<Status>(answer.status), std::string(answer.message.data()));
    return socket;
  }
}

}  // namespace muonrt
