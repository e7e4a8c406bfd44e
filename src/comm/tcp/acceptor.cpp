#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>

#include "base/backoff.hpp"
#include "comm/tcp/rendezvous.hpp"

namespace muonrt {

namespace {

constexpr int kLateAnswerMs = 5000;  // how long ranks that connect late still receive the error

class Acceptor {
 public:
  Acceptor(const Rendezvous& rendezvous, Deadline deadline)
      : rendezvous_(rendezvous),
        deadline_(deadline),
        members_(static_cast<size_t>(rendezvous.size)),
        pending_(rendezvous.secret, rendezvous.size, [this](auto& c) { examine(c); }) {
    out_.size = rendezvous.size;
    out_.sockets.resize(members_.size());
    out_.addresses.resize(members_.size());
  }

  /// Returns the connections of all ranks. If memory is exhausted, the connected ranks receive this
  /// error too, because sending an answer does not allocate.
  TcpConnections run(std::vector<Socket> listeners) {
    listeners_ = std::move(listeners);
    try {
      while (!all_ranks([](const Member& m) { return bool(m.socket()); })) {
        if (rendezvous_.check_interrupt) rendezvous_.check_interrupt();
        if (deadline_.passed())
          throw error_with_message(Status::kTimeout, [&] { return timeout_text(); });
        retry_while_out_of_memory(deadline_, [&] { poll_once(); });
      }
    } catch (const std::exception&) {
      const Error error = current_error();
      answer_all(make_answer(error.status(), error.message()));
      try {
        if (error.status() != Status::kTimeout && error.status() != Status::kAborted)
          answer_late(error);
      } catch (const std::exception&) {  // the first error is thrown
      }
      throw;
    }
    return connections();
  }

 private:
  using Connection = PendingConnections::Connection;
  struct Member {
    Connection connection;  // has no socket if the rank is not connected now
    bool connected_before = false, answered = false;
    const Socket& socket() const { return connection.socket; }
  };

  /// Returns whether the condition is true for all ranks except rank 0.
  template <class Condition>
  bool all_ranks(Condition condition) const {
    return std::all_of(members_.begin() + 1, members_.end(), condition);
  }

  std::string timeout_text() const {
    std::vector<int32_t> absent, left;
    for (size_t r = 1; r < members_.size(); ++r) {
      if (!members_[r].socket())
        (members_[r].connected_before ? left : absent).push_back(static_cast<int32_t>(r));
    }
    std::string text = cat("rendezvous at ", rendezvous_.address, ", where rank 0 listens at ");
    bool local = true;  // for example, /etc/hosts may map this machine's name to 127.0.1.1
    for (const Socket& listener : listeners_) {
      text += cat(&listener == &listeners_[0] ? "" : ", ", address_of(listener).text());
      local = local && address_of(listener).is_loopback();
    }
    text += ": ";
    if (!absent.empty())
      text +=
          cat(name_ranks(absent), " of ", members_.size(), " did not connect before the timeout");
    if (!left.empty())
      text += cat(absent.empty() ? "" : "; ", name_ranks(left), " connected and disconnected");
    if (pending_.rejected() > 0)
      text += cat("; ", pending_.rejected(), " connections were rejected, the last one because ",
                  pending_.last_reason());
    if (local)
      text +=
          "; only this machine can connect to that address, so use another address of rank 0, or "
          "interface_name on rank 0, if ranks run on other machines";
    return text + "; start all ranks with the same address and secret, or raise timeout_ms";
  }

  void poll_once() {
    std::vector<pollfd> fds;
    for (const Socket& listener : listeners_) fds.push_back({listener.fd(), POLLIN, 0});
    pending_.add_to(fds);
    poll(fds.data(), fds.size(), poll_ms(deadline_, 100));
    for (const Socket& listener : listeners_) {
      const int error = pending_.advance(listener);
      if (error != 0 && failed_) throw *failed_;
      MUONRT_REQUIRE(error == 0, Status::kComm, "rendezvous at ", rendezvous_.address,
                     ": accepting a connection failed (", errno_text(error),
                     "); raise the limit of open files (ulimit -n) above the number of ranks");
    }
    for (Member& m : members_)
      if (m.socket() && is_closed(m.socket())) m.connection.socket = Socket();
  }

  void examine(Connection& connection) {
    const Claim& c = connection.claim;
    // A peer that knows the secret belongs to this run, so its error makes the rendezvous fail.
    if (failed_) return answer(connection, make_answer(failed_->status(), failed_->message()));
    const auto require = [&](bool good, const auto&... parts) {
      if (good) return;
      const std::string text = cat("rendezvous: ", parts...);
      answer(connection, make_answer(Status::kMismatch, text));
      throw Error(Status::kMismatch, text);
    };
    const int size = rendezvous_.size;
    require(c.version == rendezvous_.version, "rank ", c.rank, " runs version ", c.version,
            " of muonrt, but rank 0 runs version ", rendezvous_.version,
            "; use the same version on all ranks");
    require(c.wire == kProtocolVersion, "the protocol version is ", c.wire, " on rank ", c.rank,
            ", but ", kProtocolVersion, " on rank 0; use the same version of muonrt on all ranks");
    require(c.size == size, "size is ", c.size, " on rank ", c.rank, ", but ", size,
            " on rank 0; pass the same size on all ranks");
    require(c.rank >= 1 && c.rank < size, "a process has rank ", c.rank,
            ", but must have a rank from 1 to ", size - 1, "; give each process a different rank");
    Member& member = members_[static_cast<size_t>(c.rank)];
    // A rank reconnects after its connection has ended, perhaps before rank 0 has detected the end.
    // The nonce in the rank's claim shows that the process is the same.
    require(
        !member.socket() || member.connection.claim.nonce == c.nonce || is_closed(member.socket()),
        "two processes have rank ", c.rank, "; give each process a different rank");
    member = {std::move(connection), true};
  }

  static bool is_closed(const Socket& s) {
    char byte = 0;
    const ssize_t n = recv(s.fd(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
  }

  /// Notifies all ranks that they are connected, and sends them the addresses of all ranks.
  TcpConnections connections() {
    for (size_t r = 1; r < members_.size(); ++r)
      out_.addresses[r] =
          peer_of(members_[r].socket()).with_port(members_[r].connection.claim.port);
    Answer connected = make_answer(Status::kOk, "");
    connected.run = fresh_nonce();
    connected.addresses = keyed_digest(rendezvous_.secret, {"addresses", bytes_of(out_.addresses)});
    out_.key = keyed_digest(rendezvous_.secret, {"key", bytes_of(connected.run)});
    answer_all(connected);
    for (size_t r = 1; r < members_.size(); ++r) {
      out_.sockets[r] = std::move(members_[r].connection.socket);
      const int fd = out_.sockets[r].fd();
      for (std::string_view rest = bytes_of(out_.addresses); !rest.empty();) {
        const ssize_t n = send(fd, rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) rest.remove_prefix(static_cast<size_t>(n));
        if (n <= 0 && (errno != EAGAIN || !wait_for(fd, POLLOUT, deadline_))) break;
      }
    }
    return std::move(out_);
  }

  void answer_all(const Answer& what) {
    for (size_t r = 1; r < members_.size(); ++r)
      if (members_[r].socket()) answer(members_[r].connection, what);
  }

  void answer(const Connection& connection, const Answer& what) {
    const int32_t rank = connection.claim.rank;
    const bool sent = connection.send_answer(rendezvous_.secret, what);
    if (sent && rank >= 1 && rank < rendezvous_.size)
      members_[static_cast<size_t>(rank)].answered = true;
  }

  /// Also sends the error to all ranks that connect within kLateAnswerMs. Otherwise these ranks
  /// would try to connect to rank 0 until their own deadlines.
  void answer_late(const Error& error) {
    failed_ = error;
    for (Member& m : members_) m.connection.socket = Socket();  // they have received their answer
    const Deadline late = Deadline::in_ms(kLateAnswerMs);
    while (!all_ranks([](const Member& m) { return m.answered; }) && !late.passed() &&
           !deadline_.passed())
      retry_while_out_of_memory(late, [&] { poll_once(); });
  }

  const Rendezvous& rendezvous_;
  const Deadline deadline_;
  std::optional<Error> failed_;
  std::vector<Socket> listeners_;
  std::vector<Member> members_;
  TcpConnections out_;
  PendingConnections pending_;
};

}  // namespace

TcpConnections accept_all_ranks(const Rendezvous& rendezvous, std::vector<Socket> listeners,
                                Deadline deadline) {
  const auto create = [&] { return std::make_unique<Acceptor>(rendezvous, deadline); };
  return retry_while_out_of_memory(deadline, create)->run(std::move(listeners));
}

}  // namespace muonrt
