#include "comm/tcp/pending_connections.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace muonrt {

bool PendingConnections::Connection::send_answer(const std::string& secret, Answer answer) const {
  answer.proof = proof_of(secret, greeted, claim.nonce, answer);
  return send_value(socket, answer);
}

void PendingConnections::add_to(std::vector<pollfd>& fds) const {
  for (const Connection& c : list_) fds.push_back({c.socket.fd(), POLLIN, 0});
}

int PendingConnections::accept(const Socket& listener) {
  constexpr int kMaxAccepts = 256;  // connections that are accepted before claims are read again
  for (int i = 0; i < kMaxAccepts; ++i) {
    Socket socket(
        [&] { return accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
    if (!socket) {
      const int error = errno;
      if (error != EMFILE && error != ENFILE) return 0;
      // accept() also fails with this error if no connection is waiting.
      if (!wait_for(listener.fd(), POLLIN, Deadline::in_ms(0))) return 0;
      if (list_.empty()) return error;
      drop_oldest();
      continue;
    }
    if (list_.size() >= most_) drop_oldest();
    prepare(socket);
    list_.push_back({std::move(socket), fresh_nonce()});
    if (!send_value(list_.back().socket, Greeting{kGreeting, list_.back().greeted}))
      list_.pop_back();
  }
  return 0;
}

void PendingConnections::read() {
  for (auto c = list_.begin(); c != list_.end();)
    c = keeps_waiting(*c) ? std::next(c) : list_.erase(c);
}

bool PendingConnections::keeps_waiting(Connection& c) {
  if (c.got < sizeof c.claim) {
    const bool ended = receive_rest(c.socket, &c.claim, sizeof c.claim, c.got) == Progress::kEnded;
    if (ended || std::memcmp(&c.claim, kClaim.data(), std::min(c.got, kClaim.size())) != 0)
      return reject("it did not send a claim of muonrt");
    if (c.got < sizeof c.claim) return !c.deadline.passed() || reject("it sent no complete claim");
  }
  if (!equal_in_constant_time(c.claim.proof, proof_of(secret_, c.greeted, c.claim)))
    return reject("its secret differs");
  examine_(c);
  return false;
}

/// Counts the rejected connection. Returns false, which means that the connection must be closed.
bool PendingConnections::reject(const char* reason) {
  ++rejected_;
  last_reason_ = reason;
  return false;
}

/// Closes the oldest connection, unless its claim has arrived in the meantime.
void PendingConnections::drop_oldest() {
  if (keeps_waiting(list_.front())) reject("too many connections were waiting");
  list_.pop_front();
}

}  // namespace muonrt
