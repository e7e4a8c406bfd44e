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

/// What one rank receives: what is expected goes to its place, what comes earlier lies here until
/// it is. Memory is taken for channels that were not entered and for what comes early, nowhere
/// else. Threads: any.
class ReceiveQueues {
 public:
  explicit ReceiveQueues(int size) : size_(static_cast<size_t>(size)), gone_(size_) {}

  /// Takes a channel's memory.
  void enter(uint64_t channel);

  /// A piece of a message, as `frame_problem` lets it pass. Memory is taken for pieces that have
  /// come, whatever the message's size is said to be, and for none of a channel that has failed.
  /// False: it is not the one that comes next. Throws bad_alloc; nothing has changed then.
  bool add(const FrameHeader& head, const char* content);
  /// Whether messages are expected that have not come, on any channel: they may lie behind one
  /// without memory.
  bool has_pending_receives();
  /// `from` has left the channel, or (all channels) is gone; `why` as in muonrt::gone.
  void left(uint64_t channel, int32_t from);
  void gone(int32_t from, std::string why) noexcept;
  /// The channel's first error counts.
  void fail(uint64_t channel, Error error);
  /// This rank takes nothing more of the channel: what came early goes, what comes late is dropped.
  void leave(uint64_t channel) noexcept;
  /// Nothing comes any more, on no channel.
  void close(Error error) noexcept;

  /// As in Post; what has failed comes before messages that wait, and a message of another size is
  /// known by its first piece.
  void post_receives(uint64_t channel, std::span<PostedReceive> messages);
  void cancel_receives(uint64_t channel) noexcept;
  void wait_receives(uint64_t channel, Deadline deadline);
  std::optional<Error> failed(uint64_t channel);
  /// The same, or why nothing comes any more.
  std::optional<Error> ended(uint64_t channel);

 private:
  struct Early {
    int32_t from;
    int64_t message_bytes, offset;
    std::unique_ptr<char[]> data;
    int64_t bytes;
  };
  /// The message of a rank that came last, and what of it has come.
  struct Coming {
    int64_t bytes = 0, arrived = 0;
  };
  struct Channel {
    std::optional<Error> error;
    std::span<PostedReceive> awaited;
    std::list<Early> early;
    std::vector<Coming> coming;  // by rank
    std::vector<char> left;
    /// The message of `from` that is awaited and not complete.
    PostedReceive* open(int32_t from);
    void end(Error why);
  };
  Channel& at(uint64_t channel);
  std::optional<Error> error_of(uint64_t channel) const;
  std::optional<Error> why_not(Channel& channel, const PostedReceive& message) const;

  const size_t size_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<uint64_t, Channel> channels_;
  std::vector<std::optional<std::string>> gone_;  // by rank
  std::optional<Error> closed_;
};

}  // namespace muonrt
