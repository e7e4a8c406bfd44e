#include "comm/tcp/handshake.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

namespace muonrt {

namespace {

/// Sends a small value without blocking. Returns false if the connection does not accept all bytes;
/// treat the connection as broken in this case.
template <class T>
bool send_value(const Socket& s, const T& value) {
  return send(s.fd(), &value, sizeof value, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof value);
}

}  // namespace

Nonce fresh_nonce() {
  Nonce out;
  const ssize_t got = getrandom(out.data(), out.size(), 0);
  MUONRT_REQUIRE(got == static_cast<ssize_t>(out.size()), Status::kInternal,
                 "rendezvous: the system's random generator failed");
  return out;
}

Digest keyed_digest(const std::string& secret, TextParts text) {
  const auto size = static_cast<uint64_t>(secret.size());
  return hmac_sha256({bytes_of(size), secret}, text);
}

Digest proof_of(const std::string& secret, const Nonce& greeted, const Claim& claim) {
  return keyed_digest(secret, {bytes_of(greeted), bytes_of(claim, offsetof(Claim, proof))});
}

Digest proof_of(const std::string& secret, const Nonce& greeted, const Nonce& claimed,
                const Answer& answer) {
  return keyed_digest(
      secret, {bytes_of(claimed), bytes_of(greeted), bytes_of(answer, offsetof(Answer, proof))});
}

Answer make_answer(Status status, const std::string& message) {
  Answer out{.status = static_cast<int32_t>(status)};
  std::memcpy(out.message.data(), message.data(), std::min(message.size(), out.message.size() - 1));
  return out;
}

Dial::Dial(const SocketAddress& to, const SocketAddress& from) {
  socket = stream_socket(to.family());
  if (socket && from.family() != 0) {
    // The system then chooses the local port in connect(), where it knows the remote address.
    turn_on(socket, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT);
    if (bind(socket.fd(), from.get(), from.length()) != 0) {
      fail(state, cat("connecting from ", from.host(), " failed: ", errno_text(errno)));
      return;
    }
  }
  if (socket && (connect(socket.fd(), to.get(), to.length()) == 0 || errno == EINPROGRESS))
    state = State::kConnecting;
  else
    fail(state, "", errno);
}

void Dial::advance(const std::string& secret) {
  if (state == State::kConnecting) {
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return fail(State::kUnreachable, "", error);
    if (address_of(socket) == peer_of(socket)) {
      // The socket is connected to itself: the target port is in the ephemeral range, no process
      // listens on it, and the system has chosen it as the local port. Close it without TIME_WAIT.
      const linger at_once{1, 0};
      setsockopt(socket.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      return fail(State::kUnreachable, "no process listens");
    }
    prepare(socket);
    state = State::kConnected;
    return;
  }
  const bool greeted = state == State::kClaimed;
  void* const to = greeted ? static_cast<void*>(&answer) : &greeting;
  const Progress progress =
      receive_rest(socket, to, greeted ? sizeof answer : sizeof greeting, got_);
  if (progress == Progress::kEnded) fail(State::kClosed, "the connection was closed");
  if (progress != Progress::kDone) return;
  got_ = 0;
  const bool good = greeted ? equal_in_constant_time(answer.proof, proof_of(secret, greeting.nonce,
                                                                            claim.nonce, answer))
                            : greeting.magic == Greeting().magic;
  if (!good) return fail(State::kForeign, "the program at that address is not muonrt");
  state = greeted ? State::kAnswered : State::kGreeted;
  answer.message.back() = 0;
}

void Dial::send_claim(const std::string& secret, const Claim& unproved) {
  claim = unproved;
  claim.proof = proof_of(secret, greeting.nonce, claim);
  state = State::kClaimed;
  if (!send_value(socket, claim)) fail(State::kClosed, "the connection was closed");
}

void Dial::fail(State reason, std::string_view text, int error) noexcept {
  state = reason;
  socket = Socket();
  try {
    why = error == 0 ? std::string(text) : errno_text(error);
  } catch (const std::bad_alloc&) {
  }
}

bool PendingConnections::Connection::send_answer(const std::string& secret, Answer answer) const {
  answer.proof = proof_of(secret, greeted, claim.nonce, answer);
  return send_value(socket, answer);
}

void PendingConnections::add_to(std::vector<pollfd>& fds) const {
  for (const Connection& c : list_) fds.push_back({c.socket.fd(), POLLIN, 0});
}

int PendingConnections::advance(const Socket& listener) {
  for (auto c = list_.begin(); c != list_.end();)
    c = keeps_waiting(*c) ? std::next(c) : list_.erase(c);
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
    if (!send_value(list_.back().socket, Greeting{.nonce = list_.back().greeted})) list_.pop_back();
  }
  return 0;
}

bool PendingConnections::keeps_waiting(Connection& c) {
  if (c.got < sizeof c.claim) {
    const Magic magic = Claim().magic;
    const bool ended = receive_rest(c.socket, &c.claim, sizeof c.claim, c.got) == Progress::kEnded;
    if (ended || std::memcmp(&c.claim, magic.data(), std::min(c.got, magic.size())) != 0)
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
