#pragma once

#include <poll.h>

#include <array>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "base/hmac.hpp"
#include "comm/tcp/socket.hpp"

namespace muonrt {

// The messages that two ranks exchange to connect: a greeting of the listening rank, a claim of the
// other rank, and an answer. The proofs are HMACs. Their key is the secret during the rendezvous,
// where rank 0 listens, and later the key of the run. The proofs also detect bits that change in
// transit. All integers are little-endian, like all machines that muonrt runs on.

constexpr size_t kSecretBytes = 16;  // minimum size of a secret
/// Version of the protocol of a connection. The ranks compare it during the rendezvous.
constexpr uint16_t kProtocolVersion = 7;

using Nonce = std::array<uint8_t, 32>;
using Digest = Sha256::Digest;
using Magic = std::array<char, 8>;

struct Greeting {
  Magic magic = {'m', 'u', 'o', 'n', 'r', 't', 'G', '1'};
  Nonce nonce{};
};
struct Claim {
  Magic magic = {'m', 'u', 'o', 'n', 'r', 't', 'C', '1'};
  int32_t rank = 0, size = 0, version = 0;
  uint16_t wire = kProtocolVersion;
  uint16_t port = 0;  // in a rendezvous: the port that the rank listens on for other ranks, or 0
  int32_t to = 0;     // the listening rank
  Nonce nonce{};      // in a rendezvous, equal in all attempts of a process
  Digest proof{};
};
struct Answer {
  Magic magic = {'m', 'u', 'o', 'n', 'r', 't', 'A', '1'};
  int32_t status = 0;
  std::array<char, 500> message{};
  // At the end of a rendezvous, after which rank 0 sends the addresses of all ranks:
  Nonce run{};         // different for every rendezvous
  Digest addresses{};  // HMAC of the addresses
  Digest proof{};
};
static_assert(sizeof(Greeting) == 40 && sizeof(Claim) == 92 && sizeof(Answer) == 608);

/// Returns the bytes of a value, or the first of these bytes.
template <class T>
std::string_view bytes_of(const T& value, size_t bytes = sizeof(T)) {
  return {reinterpret_cast<const char*>(&value), bytes};
}
inline std::string_view bytes_of(const Addresses& all) {
  return bytes_of(all[0], all.size() * sizeof all[0]);
}

/// Returns a number from the system's random generator. Errors: INTERNAL if the generator fails.
Nonce fresh_nonce();

/// Returns the HMAC of `text`. The key is the length of the secret, followed by the secret. HMAC
/// pads keys with zeros, so without the length, two secrets that differ only in trailing zeros
/// would give the same key.
Digest keyed_digest(const std::string& secret, TextParts text);
/// Return the HMAC over both random numbers and all fields of the claim, or the answer, except the
/// proof.
Digest proof_of(const std::string& secret, const Nonce& greeted, const Claim& claim);
Digest proof_of(const std::string& secret, const Nonce& greeted, const Nonce& claimed,
                const Answer& answer);

/// Returns an answer without a proof. A message that is too long is truncated.
Answer make_answer(Status status, const std::string& message);

/// The end of a connection that starts the handshake. No function blocks.
struct Dial {
  enum class State {
    kConnecting,  // waits for the other machine to accept
    kConnected,   // waits for the greeting
    kGreeted,     // waits for send_claim()
    kClaimed,     // waits for the answer
    kAnswered,    // the other end knows the secret; `answer` is set
    // The handshake has failed for the reason in `why`:
    kUnreachable,
    kClosed,   // the other end has closed the connection
    kForeign,  // the other end is not muonrt, or does not know the secret
  };

  Dial() = default;
  /// @param from  the local address to use. An empty address stands for any local address.
  Dial(const SocketAddress& to, const SocketAddress& from);

  bool is_waiting() const { return state <= State::kClaimed && state != State::kGreeted; }
  short events() const { return state == State::kConnecting ? POLLOUT : POLLIN; }
  void advance(const std::string& secret);
  void send_claim(const std::string& secret, const Claim& unproved);
  /// @param error  if not 0, the value of errno that `why` describes instead of `text`.
  void fail(State reason, std::string_view text, int error = 0) noexcept;

  State state = State::kUnreachable;
  Socket socket;
  std::string why;
  Greeting greeting;
  Claim claim;
  Answer answer;

 private:
  size_t got_ = 0;  // number of bytes that were read of the current message
};

/// The accepted connections whose other end has not yet proved that it knows the secret. Each
/// connection receives a greeting. If no claim with a valid proof arrives within five seconds, the
/// connection is closed without an answer.
class PendingConnections {
 public:
  struct Connection {
    Socket socket;
    Nonce greeted{};
    Claim claim{};
    size_t got = 0;  // number of bytes of the claim that were received
    Deadline deadline = Deadline::in_ms(5000);
    /// Answers the claim. Returns false if the connection is broken.
    bool send_answer(const std::string& secret, Answer answer) const;
  };
  /// Called with each connection whose proof is valid. The function may move the socket out of the
  /// connection. If it throws, it is called again later.
  using Examine = std::function<void(Connection&)>;

  /// @param secret  must outlive the object.
  PendingConnections(const std::string& secret, int ranks, Examine examine)
      : secret_(secret), most_(256 + static_cast<size_t>(ranks)), examine_(std::move(examine)) {}

  void add_to(std::vector<pollfd>& fds) const;
  /// Reads claims, and accepts connections. Closes the oldest pending connection if there are too
  /// many, or if the process cannot open another file. Returns 0, or the error of accept() if no
  /// connection is pending.
  int advance(const Socket& listener);

  bool empty() const { return list_.empty(); }
  size_t most() const { return most_; }
  int64_t rejected() const { return rejected_; }
  const char* last_reason() const { return last_reason_; }

 private:
  bool keeps_waiting(Connection& c);
  bool reject(const char* reason);
  void drop_oldest();

  const std::string& secret_;
  const size_t most_;
  const Examine examine_;
  std::list<Connection> list_;
  int64_t rejected_ = 0;
  const char* last_reason_ = "";
};

}  // namespace muonrt
