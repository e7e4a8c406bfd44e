#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/error.hpp"
#include "base/hmac.hpp"
#include "comm/tcp/frame.hpp"
#include "comm/tcp/socket.hpp"

namespace muonrt {

// The messages of a rendezvous: rank 0 sends a greeting, the other rank sends a claim, and rank 0
// sends an answer. They have fixed sizes and the machine's byte order, which is little-endian on
// all machines that muonrt runs on. Layouts and magic numbers are the same in every version of the
// protocol, so that ranks of different versions can report both versions. The proofs also detect
// bits that change in transit.

constexpr size_t kSecretBytes = 8;  // minimum size of a secret

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

/// Returns the protocol version of a rank that sends `said`: version 1 sends 0.
constexpr int32_t protocol_version(int32_t said) { return said == 0 ? 1 : said; }

/// Returns a number from the system's random generator. Errors: INTERNAL if that fails.
Nonce fresh_nonce();

/// HMAC of `text`. The key is the length of the secret and the secret, because HMAC pads keys with
/// zeros: two secrets that differ only in zeros at their end have different keys.
Digest keyed_digest(const std::string& secret, TextParts text);

/// HMAC over both random numbers and all fields of the claim, or the answer, except the proof.
Digest proof_of(const std::string& secret, const Nonce& greeted, const Claim& claim);
Digest proof_of(const std::string& secret, const Nonce& greeted, const Nonce& claimed,
                const Answer& answer);

/// Makes an answer with its proof. A message that is too long is cut.
Answer make_answer(const std::string& secret, const Nonce& greeted, const Nonce& claimed,
                   Status status, const std::string& message);

/// Sends a small value without blocking. Returns false if the connection does not accept all of it;
/// then it is treated as broken.
template <class T>
bool send_value(const Socket& s, const T& value) {
  return send(s.fd(), &value, sizeof value, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof value);
}

}  // namespace muonrt
