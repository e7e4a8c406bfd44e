#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "comm/post.hpp"

namespace muonrt {

/// What one rank has received and not yet taken. Threads: any.
class Inboxes {
 public:
  using Message = std::vector<std::byte>;

  void deliver(uint64_t channel, int32_t from, Message message);
  /// `from` has left the channel, or (all channels) is gone.
  void left(uint64_t channel, int32_t from);
  void gone(int32_t from);
  /// The channel's first error counts.
  void fail(uint64_t channel, Error error);
  /// Nothing comes any more, on no channel.
  void close(Error error);

  /// Errors: as Post::receive; what has failed comes before messages that wait.
  void take(uint64_t channel, int32_t from, void* data, int64_t bytes, Deadline deadline);
  std::optional<Error> failed(uint64_t channel);

 private:
  std::optional<Error> error_of(uint64_t channel) const;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::pair<uint64_t, int32_t>, std::deque<Message>> messages_;
  std::map<uint64_t, Error> errors_;
  std::set<std::pair<uint64_t, int32_t>> left_;
  std::set<int32_t> gone_;
  std::optional<Error> closed_;
};

}  // namespace muonrt
