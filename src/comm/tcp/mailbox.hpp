#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/deadline.hpp"
#include "base/error.hpp"

namespace muonrt {

/// A receive whose destination is known, so that its message needs no buffer.
struct PostedReceive {
  int32_t from;
  void* data;
  int64_t bytes;
  int64_t arrived = 0;  // bytes
  int64_t sent = 0;     // size of the sender's message in bytes; 0: nothing has arrived
  bool complete() const { return arrived == bytes; }
  bool has_other_size() const { return sent != 0 && sent != bytes; }
};

/// Delivers messages between pairs of ranks on numbered channels. Messages with the same channel,
/// sender and receiver keep their order. MailboxTransport makes a Transport of a mailbox. All ranks
/// use the same numbers for the same channels. Threads: one for each channel; `publish` from any.
class Mailbox {
 public:
  Mailbox(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Mailbox() = default;
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual std::string name() const = 0;

  /// Allocates what `publish` and `leave` need on the channel, so that they do not allocate.
  virtual void enter(uint64_t channel) = 0;

  /// Returns when `data` may be reused, perhaps before the peer has received the message.
  /// Errors: TIMEOUT, COMM if the connection has ended, an error published on the channel.
  virtual void send(uint64_t channel, int32_t to, const void* data, int64_t bytes,
                    Deadline deadline) = 0;

  /// Posts receives from different ranks. Until cancel_receives(), messages are written to their
  /// destinations when they arrive, without an allocation.
  virtual void post_receives(uint64_t channel, std::span<PostedReceive> messages) = 0;
  virtual void cancel_receives(uint64_t channel) noexcept = 0;
  /// Waits for all posted receives. Errors: TIMEOUT; MISMATCH if the size of a message differs,
  /// which ends the channel; COMM if a peer has left the channel or its connection has ended; an
  /// error published on the channel; OUT_OF_MEMORY if a message that arrived early could not be
  /// stored.
  virtual void wait_receives(uint64_t channel, Deadline deadline) = 0;
  /// Receives the next message of one rank.
  void receive(uint64_t channel, int32_t from, void* data, int64_t bytes, Deadline deadline);

  /// Ends all waits on the channel, here and on the peers. Does not block.
  virtual void publish(uint64_t channel, const Error& error) noexcept = 0;
  virtual std::optional<Error> published_error(uint64_t channel) = 0;
  /// Ends this rank's use of the channel. Messages that it has sent are still delivered.
  virtual void leave(uint64_t channel) noexcept = 0;

 private:
  const int rank_, size_;
};

/// Posts receives for the duration of a scope. Nothing is written to their destinations afterwards.
class ReceiveScope {
 public:
  ReceiveScope(Mailbox& mailbox, uint64_t channel, std::span<PostedReceive> messages)
      : mailbox_(mailbox), channel_(channel) {
    mailbox.post_receives(channel, messages);
  }
  ~ReceiveScope() { mailbox_.cancel_receives(channel_); }
  ReceiveScope(const ReceiveScope&) = delete;
  ReceiveScope& operator=(const ReceiveScope&) = delete;

 private:
  Mailbox& mailbox_;
  const uint64_t channel_;
};

inline void Mailbox::receive(uint64_t channel, int32_t from, void* data, int64_t bytes,
                             Deadline deadline) {
  PostedReceive one{from, data, bytes};
  const ReceiveScope scope(*this, channel, {&one, 1});
  wait_receives(channel, deadline);
}

// Errors of every mailbox.

inline Error receive_timeout_error(int32_t from) {
  return make_error(Status::kTimeout, "received no message from rank ", from,
                    " before the timeout; check whether rank ", from,
                    " is still running, or raise the timeout with muonrt_comm_set_timeout()");
}
/// @param why  what is wrong with the last frame of the connection, if that has ended it; else "".
inline Error disconnected_error(int32_t from, const char* why = "") {
  if (!*why)
    return make_error(Status::kComm, "rank ", from,
                      " destroyed its communicator or its process ended; see the output of rank ",
                      from, " for the cause");
  return make_error(Status::kComm, "lost the connection to rank ", from, ": ", why,
                    "; check the network and the memory of both machines, and use the same build "
                    "of muonrt on all ranks");
}
template <class... What>
Error invalid_message_error(int32_t from, const What&... what) {
  return make_error(Status::kComm, "received an invalid frame from rank ", from, ": ", what...,
                    "; use the same build of muonrt on all ranks");
}
inline Error checksum_error(int32_t from, const char* what) {
  return make_error(
      Status::kComm, "the checksum of ", what, " from rank ", from,
      " is wrong, so data was corrupted in transit; check the network and the memory of both "
      "machines");
}
inline Error size_mismatch_error(int32_t from, int64_t sent, int64_t expected) {
  return make_error(Status::kMismatch, "rank ", from, " sent ", sent,
                    " bytes, but this rank expected ", expected,
                    "; pass the same size on both ranks");
}
inline Error early_message_memory_error(int rank) {
  return make_error(Status::kOutOfMemory, "rank ", rank,
                    " is out of memory for messages that arrived early; reduce chunk_bytes, or run "
                    "fewer ranks on this machine");
}

}  // namespace muonrt
