#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/post.hpp"

namespace muonrt {

/// What one rank has received and not yet taken. Threads: any.
class Inboxes {
 public:
  struct Piece {
    std::unique_ptr<char[]> data;
    int64_t bytes;
  };

  /// The piece at `offset` of a message of `message_bytes`, as `fault_of` lets it pass. Memory is
  /// held for pieces that have come, whatever the message's size is said to be, and for none of a
  /// channel that has failed. False: it is not the one that comes next.
  bool add(uint64_t channel, int32_t from, int64_t message_bytes, int64_t offset, Piece piece);
  /// `from` has left the channel, or (all channels) is gone; `why` as in muonrt::gone.
  void left(uint64_t channel, int32_t from);
  void gone(int32_t from, std::string why);
  /// The channel's first error counts.
  void fail(uint64_t channel, Error error);
  /// Nothing comes any more, on no channel.
  void close(Error error);

  /// Errors: as Post::receive; what has failed comes before messages that wait, and a message of
  /// another size is known by its first piece.
  void take(uint64_t channel, int32_t from, void* data, int64_t bytes, Deadline deadline);
  std::optional<Error> failed(uint64_t channel);
  /// The same, or why nothing comes any more.
  std::optional<Error> ended(uint64_t channel);

 private:
  using Place = std::pair<uint64_t, int32_t>;  // channel, from
  struct Message {
    int64_t bytes, arrived;
    std::vector<Piece> pieces;
  };
  std::optional<Error> error_of(uint64_t channel) const;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<Place, std::deque<Message>> messages_;  // the last may be on its way
  std::map<uint64_t, Error> errors_;
  std::set<Place> left_;
  std::map<int32_t, std::string> gone_;
  std::optional<Error> closed_;
};

}  // namespace muonrt
