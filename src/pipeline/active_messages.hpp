#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "backend/comm.hpp"
#include "backend/scalars.hpp"
#include "plan/rank_chunk.hpp"

namespace muonrt {

/// The elements of a parameter in a message buffer, in bytes.
struct ParamBytes {
  int32_t param;
  int64_t begin, end;
};

/// Returns the total bytes of the messages whose peer is not `rank`.
template <class Message>
int64_t bytes_of_peers(std::span<const Message> messages, int rank) {
  int64_t sum = 0;
  for (const Message& message : messages) sum += message.peer == rank ? 0 : message.bytes;
  return sum;
}

/// The messages of a chunk in one direction. A step may send only part of a message: the bytes from
/// its first to its last active parameter. Sender and receiver list the parameters of a message in
/// the same order, so both choose the same bytes.
class ActiveMessages {
 public:
  ActiveMessages() = default;
  /// @param contents  Parameters of all messages, in any order.
  ActiveMessages(std::vector<Region> regions, std::vector<ParamBytes> contents);

  /// Replaces `messages` with the messages that contain active parameters. Does not allocate if
  /// `messages` has capacity for all messages.
  /// @param params  If null, selects all messages completely.
  template <class Message>
  void select(std::vector<Message>& messages, void* buffer, const ParamView* params) const {
    messages.clear();
    for_each(params, [&](const Region& r, int64_t begin, int64_t end) {
      if (begin < end)
        messages.push_back({r.peer, static_cast<char*>(buffer) + begin, end - begin});
    });
  }
  /// Calls `use(begin, end)` for the bytes of the messages that `select` omits.
  template <class Use>
  void for_each_omitted(const ParamView* params, const Use& use) const {
    for_each(params, [&](const Region& r, int64_t begin, int64_t end) {
      if (r.offset < begin) use(r.offset, begin);
      if (end < r.offset + r.bytes) use(end, r.offset + r.bytes);
    });
  }

 private:
  /// Calls `use(region, begin, end)` with the bytes that are sent. If no bytes are sent, both
  /// `begin` and `end` are the offset of the message.
  template <class Use>
  void for_each(const ParamView* params, const Use& use) const {
    for (size_t i = 0; i < regions_.size(); ++i) {
      const Region& r = regions_[i];
      int64_t begin = r.offset, end = r.offset + r.bytes;
      if (params) {
        const std::span<const ParamBytes> of = contents_of(i);
        const auto active = [&](const ParamBytes& c) { return params[c.param].active != 0; };
        size_t first = 0, last = of.size();
        while (first < last && !active(of[first])) ++first;
        while (last > first && !active(of[last - 1])) --last;
        begin = first < last ? of[first].begin : r.offset;
        end = first < last ? of[last - 1].end : r.offset;
      }
      use(r, begin, end);
    }
  }
  std::span<const ParamBytes> contents_of(size_t region) const {
    const auto [first, count] = ranges_[region];
    return {contents_.data() + first, count};
  }

  std::vector<Region> regions_;
  std::vector<ParamBytes> contents_;               // in ascending order
  std::vector<std::pair<size_t, size_t>> ranges_;  // for each region: first entry, count
};

}  // namespace muonrt
