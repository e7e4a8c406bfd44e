#include "comm/tcp/handshake.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace muonrt {

namespace {

template <class T>
std::string_view bytes_of(const T& value, size_t bytes = sizeof(T)) {
  return {reinterpret_cast<const char*>(&value), bytes};
}

}  // namespace

Digest keyed_digest(const std::string& secret, TextParts text) {
  const auto size = static_cast<uint64_t>(secret.size());
  return hmac_sha256({bytes_of(size), secret}, text);
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

Digest proof_of(const std::string& secret, const Nonce& greeted, const Nonce& claimed,
                const Answer& answer) {
  return keyed_digest(
      secret, {bytes_of(claimed), bytes_of(greeted), bytes_of(answer, offsetof(Answer, proof))});
}

Digest proof_of(const std::string& secret, const AddressTable& table,
                const std::vector<SocketAddress>& addresses) {
  const std::string_view all = bytes_of(addresses[0], addresses.size() * sizeof(SocketAddress));
  return keyed_digest(secret, {"addresses", bytes_of(table.run), all});
}

Digest key_of(const std::string& secret, const AddressTable& table) {
  return keyed_digest(secret, {"key", bytes_of(table.run)});
}

Answer make_answer(const std::string& secret, const Nonce& greeted, const Nonce& claimed,
                   Status status, const std::string& message) {
  Answer out{};
  out.magic = kAnswer;
  out.status = static_cast<int32_t>(status);
  std::memcpy(out.message.data(), message.data(), std::min(message.size(), out.message.size() - 1));
  out.proof = proof_of(secret, greeted, claimed, out);
  return out;
}

}  // namespace muonrt
