#include "comm/tcp/handshake.hpp"

#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace muonrt {

Digest keyed_digest(const std::string& secret, TextParts text) {
  const auto size = static_cast<uint64_t>(secret.size());
  return hmac_sha256({bytes_of(size), secret}, text);
}

Digest proof_of(const std::string& secret, const Nonce& greeted, const Nonce& claimed,
                const Answer& answer) {
  return keyed_digest(
      secret, {bytes_of(claimed), bytes_of(greeted), bytes_of(answer, offsetof(Answer, proof))});
}

Nonce fresh_nonce() {
  Nonce out;
  const ssize_t got = getrandom(out.data(), out.size(), 0);
  MUONRT_REQUIRE(got == static_cast<ssize_t>(out.size()), Status::kInternal,
                 "rendezvous: the system's random generator failed");
  return out;
}

Digest proof_of(const std::string& secret, const Nonce& greeted, const Claim& claim) {
  return keyed_digest(secret, {bytes_of(greeted), bytes_of(claim, offsetof(Claim, proof))});
}

Digest proof_of(const std::string& secret, const std::vector<SocketAddress>& addresses) {
  return keyed_digest(
      secret, {"addresses", bytes_of(addresses[0], addresses.size() * sizeof(SocketAddress))});
}

Digest key_of(const std::string& secret, const Nonce& run) {
  return keyed_digest(secret, {"key", bytes_of(run)});
}

Answer make_answer(Status status, const std::string& message) {
  Answer out{.status = static_cast<int32_t>(status)};
  std::memcpy(out.message.data(), message.data(), std::min(message.size(), out.message.size() - 1));
  return out;
}

Dial::Dial(const SocketAddress& to, const SocketAddress& from) {
  socket = begin_connect(to, from, why);
  if (socket) state = State::kConnecting;
}

short Dial::events() const { return state == State::kConnecting ? POLLOUT : POLLIN; }

void Dial::advance(const std::string& secret) {
  if (state == State::kConnecting) {
    if (!is_connected(socket, why)) return fail(State::kUnreachable, why);
    prepare(socket);
    state = State::kConnected;
    return;
  }
  const bool greeted = state == State::kClaimed;
  void* const to = greeted ? static_cast<void*>(&answer) : &greeting;
  switch (receive_rest(socket, to, greeted ? sizeof answer : sizeof greeting, got_)) {
    case Progress::kBlocked:
      return;
    case Progress::kEnded:
      return fail(State::kClosed, "the connection was closed");
    case Progress::kDone:
      break;
  }
  got_ = 0;
  const bool good = greeted ? equal_in_constant_time(answer.proof, proof_of(secret, greeting.nonce,
                                                                            claim.nonce, answer))
                            : greeting.magic == kGreeting;
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

void Dial::fail(State reason, std::string_view text) noexcept {
  state = reason;
  socket = Socket();
  try {
    why = text;
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace muonrt
