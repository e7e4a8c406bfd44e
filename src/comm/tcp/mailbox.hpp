#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/deadline.hpp"
#include "base/error.hpp"

namespace muonrt {

/// A message that a rank waits for.
struct PostedReceive {
  int32_t from;
  void* data;
  int64_t bytes;
  // What has come of it:
  int64_t arrived = 0;
  int64_t sent = 0;  // how many its sender says; 0: nothing has come
  bool complete() const { return arrived == bytes; }
  bool has_other_size() const { return sent != 0 && sent != bytes; }
};

/// Carries messages between pairs of ranks, in order for each (channel, from, to); what a way to
/// move messages (sockets) implements, and MailboxTransport makes a Transport of. A channel is
/// any number that the ranks agree on. Threads: one for each channel, and `publish` from any.
class Mailbox {
 public:
  Mailbox(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Mailbox() = default;
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual std::string name() const = 0;

  /// Takes what the channel's end will need, so that `publish` and `leave` need no memory.
  virtual void enter(uint64_t channel) = 0;

  /// Returns when `data` may be reused, perhaps before the peer has it.
  /// Errors: TIMEOUT, COMM if the way is broken, what was published on the channel.
  virtual void send(uint64_t channel, int32_t to, const void* data, int64_t bytes,
                    Deadline deadline) = 0;

  /// From `expect` to `forget`, messages of different ranks go to their places as they come. They
  /// take no memory then.
  virtual void post_receives(uint64_t channel, std::span<PostedReceive> messages) = 0;
  virtual void cancel_receives(uint64_t channel) noexcept = 0;
  /// Waits for all that is expected. Errors: TIMEOUT; MISMATCH if one has another size (then the
  /// channel has failed); COMM if the peer has left or is gone; what was published on the channel;
  /// OUT_OF_MEMORY if there is none for what comes before it is expected.
  virtual void wait_receives(uint64_t channel, Deadline deadline) = 0;
  /// The next message of one rank.
  void receive(uint64_t channel, int32_t from, void* data, int64_t bytes, Deadline deadline);

  /// Ends all waits on the channel, here and on the peers. Does not block.
  virtual void publish(uint64_t channel, const Error& error) noexcept = 0;
  virtual std::optional<Error> published_error(uint64_t channel) = 0;
  /// This rank sends and takes no more on the channel; what it has sent is still delivered.
  virtual void leave(uint64_t channel) noexcept = 0;

 private:
  const int rank_, size_;
};

/// Messages that are expected in a scope: afterwards nothing is written to their places.
class ReceiveScope {
 public:
  ReceiveScope(Mailbox& mailbox, uint64_t channel, std::span<PostedReceive> messages)
      : post_(mailbox), channel_(channel) {
    mailbox.post_receives(channel, messages);
  }
  ~ReceiveScope() { post_.cancel_receives(channel_); }
  ReceiveScope(const ReceiveScope&) = delete;
  ReceiveScope& operator=(const ReceiveScope&) = delete;

 private:
  Mailbox& post_;
  const uint64_t channel_;
};

inline void Mailbox::receive(uint64_t channel, int32_t from, void* data, int64_t bytes,
                             Deadline deadline) {
  PostedReceive one{from, data, bytes};
  const ReceiveScope expected(*this, channel, {&one, 1});
  wait_receives(channel, deadline);
}

// What every post says in the same words.

inline Error receive_timeout_error(int32_t from) {
  return make_error(
      Status::kTimeout, "no message from rank ", from,
      " came before the deadline; look for a rank that is late, or raise the timeout");
}
/// @param why  what the last that it sent is not, if that is why it is gone; else empty.
inline Error disconnected_error(int32_t from, const char* why = "") {
  if (!*why)
    return make_error(Status::kComm, "rank ", from,
                      " has left or its process has ended; look at its messages");
  return make_error(Status::kComm, "what rank ", from, " sends cannot be read any more: ", why,
                    "; look at the network and the memory between it and this rank");
}
template <class... What>
Error invalid_message_error(int32_t from, const What&... what) {
  return make_error(Status::kComm, "rank ", from, " sent what makes no sense: ", what...,
                    "; use one build of muonrt on all ranks");
}
inline Error checksum_error(int32_t from, const char* what) {
  return make_error(
      Status::kComm, what, " of rank ", from,
      " has changed on its way (its checksum is another one); look at the network and the memory "
      "between it and this rank");
}
inline Error size_mismatch_error(int32_t from, int64_t sent, int64_t expected) {
  return make_error(Status::kMismatch, "rank ", from, " sent ", sent, " bytes, expected were ",
                    expected, "; both ranks must agree on the size");
}
inline Error early_message_memory_error(int rank) {
  return make_error(Status::kOutOfMemory, "rank ", rank,
                    " has no memory for messages that come before it takes them; give it more, or "
                    "use smaller chunks");
}

}  // namespace muonrt
