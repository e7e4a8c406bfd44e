#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/error.hpp"
#include "base/hmac.hpp"
#include "comm/tcp/frame.hpp"
#include "comm/tcp/socket.hpp"

namespace muonrt {

// What is said at a rendezvous: rank 0's greeting, the connection's claim, rank 0's answer. Fixed
// sizes, the machine's byte order (little on all that muonrt runs on). Shapes and magic stay as
// they are in every version of the wire, so that ranks of different versions can refuse each other
// by name. The proofs serve as checksums: bits that change on the way make them wrong.

constexpr size_t kSecretBytes = 8;  // of a secret at least

using Nonce = std::array<uint8_t, 32>;
using Digest = Sha256::Digest;

struct Greeting {
  std::array<char, 8> magic;
  Nonce nonce;
};
struct Claim {
  std::array<char, 8> magic;
  int32_t rank, size, version, wire;
  Nonce nonce;
  Digest proof;
};
struct Answer {
  std::array<char, 8> magic;
  int32_t status, wire;
  std::array<char, 496> message;
  Digest proof;
};
static_assert(sizeof(Greeting) == 40 && sizeof(Claim) == 88 && sizeof(Answer) == 544);

constexpr std::array<char, 8> kGreeting = {'m', 'u', 'o', 'n', 'r', 't', 'G', '1'};
constexpr std::array<char, 8> kClaim = {'m', 'u', 'o', 'n', 'r', 't', 'C', '1'};
constexpr std::array<char, 8> kAnswer = {'m', 'u', 'o', 'n', 'r', 't', 'A', '1'};

/// That of a rank which says this: version 1 said nothing.
constexpr int32_t protocol_version(int32_t said) { return said == 0 ? 1 : said; }

/// From the system's source of random numbers. Errors: INTERNAL if it gives none.
Nonce fresh_nonce();

/// HMAC pads its key with zeros: keyed is the secret with its length, so that no two are equal.
Digest keyed_digest(const std::string& secret, TextParts text);

/// HMAC over both numbers and all of the claim, or the answer, but the proof itself.
Digest proof_of(const std::string& secret, const Nonce& greeted, const Claim& claim);
Digest proof_of(const std::string& secret, const Nonce& greeted, const Nonce& claimed,
                const Answer& answer);

/// With the message cut to its place.
Answer make_answer(const std::string& secret, const Nonce& greeted, const Nonce& claimed,
                   Status status, const std::string& message);

/// All of `value`, or false: it is small, so a connection that does not take it is as good as dead.
template <class T>
bool send_value(const Socket& s, const T& value) {
  return send(s.fd(), &value, sizeof value, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof value);
}

}  // namespace muonrt
