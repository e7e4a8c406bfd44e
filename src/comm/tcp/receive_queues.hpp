#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/tcp/frame.hpp"
#include "comm/tcp/mailbox.hpp"

namespace muonrt {

/// The messages that one rank receives. A message with a posted receive is written to its
/// destination; an earlier message is stored until its receive is posted. Memory is allocated only
/// for earlier messages, and for channels that were not entered. Threads: any.
class ReceiveQueues {
 public:
  explicit ReceiveQueues(int size) : size_(static_cast<size_t>(size)), disconnected_(size_) {}

  /// Allocates the memory of a channel.
  void enter(uint64_t channel);

  /// Adds a part of a message whose header `frame_problem` has accepted. Allocates memory only for
  /// parts that have arrived, independent of the size of the message, and none if the channel has
  /// failed. Returns false if it is not the next part. Throws bad_alloc, and then changes nothing.
  bool add(const FrameHeader& head, const char* content);
  /// Returns true if a posted receive of any channel is not complete. Its message may follow one
  /// for which there is no memory.
  bool has_pending_receives();
  /// Records that `from` has left the channel.
  void left(uint64_t channel, int32_t from);
  /// Records that the connection of `from` has ended, for all channels.
  /// @param why  as in disconnected_error().
  void disconnect(int32_t from, std::string why) noexcept;
  /// Ends a channel with an error, unless it has one already.
  void fail(uint64_t channel, Error error);
  /// Frees the stored messages of a channel, and drops messages that arrive later.
  void leave(uint64_t channel) noexcept;
  /// Ends all channels, because the connection of this rank has ended.
  void close(Error error) noexcept;

  /// As in Mailbox. An error of the channel has priority over stored messages, and a size that
  /// differs is detected when the first part of the message arrives.
  void post_receives(uint64_t channel, std::span<PostedReceive> messages);
  void cancel_receives(uint64_t channel) noexcept;
  void wait_receives(uint64_t channel, Deadline deadline);
  /// Returns the error of the channel, if any.
  std::optional<Error> failed(uint64_t channel);
  /// The same, or the error of this rank's connection.
  std::optional<Error> ended(uint64_t channel);

 private:
  struct Early {
    int32_t from;
    int64_t message_bytes, offset;
    std::unique_ptr<char[]> data;
    int64_t bytes;
  };
  /// The last message of a sender, and how many bytes of it have arrived.
  struct Incoming {
    int64_t bytes = 0, arrived = 0;
  };
  struct Channel {
    std::optional<Error> error;
    std::span<PostedReceive> posted;
    std::list<Early> early;
    std::vector<Incoming> incoming;  // by sender
    std::vector<char> left;          // by sender
    /// Returns the posted receive from `from` that is not complete, or null.
    PostedReceive* open(int32_t from);
    void end(Error why);
  };
  Channel& at(uint64_t channel);
  std::optional<Error> error_of(uint64_t channel) const;
  std::optional<Error> why_missing(Channel& channel, const PostedReceive& message) const;

  const size_t size_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<uint64_t, Channel> channels_;
  std::vector<std::optional<std::string>> disconnected_;  // by rank
  std::optional<Error> closed_;
};

}  // namespace muonrt
