#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/deadline.hpp"
#include "base/error.hpp"

namespace muonrt {

/// Carries messages between pairs of ranks, in order for each (channel, from, to); what a way to
/// move messages (sockets) implements, and PostTransport makes a Transport of. A channel is
/// any number that the ranks agree on. Threads: one for each channel, and `publish` from any.
class Post {
 public:
  Post(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Post() = default;
  Post(const Post&) = delete;
  Post& operator=(const Post&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual std::string name() const = 0;

  /// Returns when `data` may be reused, perhaps before the peer has it.
  /// Errors: TIMEOUT, COMM if the way is broken, what was published on the channel.
  virtual void send(uint64_t channel, int32_t to, const void* data, int64_t bytes,
                    Deadline deadline) = 0;
  /// The next message of `from`. Errors: TIMEOUT; MISMATCH if it has another size; COMM if the peer
  /// has left or is gone; what was published on the channel.
  virtual void receive(uint64_t channel, int32_t from, void* data, int64_t bytes,
                       Deadline deadline) = 0;

  /// Ends all waits on the channel, here and on the peers. Does not block.
  virtual void publish(uint64_t channel, const Error& error) noexcept = 0;
  virtual std::optional<Error> published(uint64_t channel) = 0;
  /// This rank sends no more on the channel; what it has sent is still delivered.
  virtual void leave(uint64_t channel) noexcept = 0;

 private:
  const int rank_, size_;
};

// What every post says in the same words.

inline Error not_in_time(int32_t from) {
  return Error(Status::kTimeout, cat("no message from rank ", from,
                                     " came before the deadline; look for a rank that is late, or "
                                     "raise the timeout"));
}
/// @param why  what the last that it sent is not, if that is why it is gone; else empty.
inline Error gone(int32_t from, const std::string& why = {}) {
  return Error(Status::kComm,
               why.empty()
                   ? cat("rank ", from, " has left or its process has ended; look at its messages")
                   : cat("what rank ", from, " sends cannot be read any more: ", why,
                         "; look at the network and the memory between it and this rank"));
}
inline Error senseless(int32_t from, const std::string& what) {
  return Error(Status::kComm, cat("rank ", from, " sent what makes no sense: ", what,
                                  "; use one build of muonrt on all ranks"));
}
inline Error changed(int32_t from, const char* what) {
  return Error(Status::kComm,
               cat(what, " of rank ", from,
                   " has changed on its way (its checksum is another one); look at the network and "
                   "the memory between it and this rank"));
}
inline Error another_size(int32_t from, int64_t sent, int64_t expected) {
  return Error(Status::kMismatch, cat("rank ", from, " sent ", sent, " bytes, expected were ",
                                      expected, "; both ranks must agree on the size"));
}

}  // namespace muonrt
