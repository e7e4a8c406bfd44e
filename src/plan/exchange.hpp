#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/checked.hpp"
#include "plan/messages.hpp"
#include "plan/owners/holder_table.hpp"
#include "plan/plan.hpp"
#include "plan/rank_chunk.hpp"

namespace muonrt {

/// Assigns consecutive offsets in a buffer to messages.
class MessageCursor {
 public:
  explicit MessageCursor(int64_t element_bytes) : element_bytes_(element_bytes) {}
  void begin_message() { begin_ = end_ = total(); }
  /// Reserves `numel` elements at the end of the buffer. Returns their offset from its start, in
  /// elements.
  int64_t take(int64_t numel) {
    const int64_t at = end_ / element_bytes_;
    end_ += numel * element_bytes_;
    return at;
  }
  Region region(int32_t peer) const { return {peer, begin_, end_ - begin_}; }
  /// Returns the size of the buffer in bytes, a multiple of kMessageAlignment.
  int64_t total() const { return round_up(end_, kMessageAlignment); }

 private:
  int64_t element_bytes_, begin_ = 0, end_ = 0;
};

/// The data from which holders and owners derive their block lists. It is equal on every rank.
struct ExchangeContext {
  const Plan& plan;
  const HolderTable& holders;
  BlockTable& blocks;

  const Matrix& matrix(int32_t id) const { return plan.matrices()[static_cast<size_t>(id)]; }
  const ParamSpec& spec(const Matrix& m) const {
    return plan.problem().params[static_cast<size_t>(m.param)];
  }
  const std::vector<Block>& blocks_of(int32_t id, const Holder& holder) const {
    return blocks.blocks(matrix(id).param, matrix(id).index, holder);
  }
  const std::vector<Block>& grad_blocks_of(int32_t id, const Holder& holder) const {
    return blocks.grad_blocks(matrix(id).param, matrix(id).index, holder);
  }
  /// Converts `block` of matrix `id` to a ShardBlock by adding its scales and its position in the
  /// tensor.
  ShardBlock shard_block(int32_t id, const Block& block, int64_t packed_offset) const;
};

/// Calls `use(first, last)` for each message, where [first, last) are the entries of the message.
template <class Use>
void for_each_message(const std::vector<MessageEntry>& entries, const Use& use) {
  for (size_t i = 0; i < entries.size();) {
    const auto same = [&](const MessageEntry& entry) {
      return entry.from == entries[i].from && entry.to == entries[i].to &&
             entry.owner == entries[i].owner;
    };
    size_t end = i;
    while (end < entries.size() && same(entries[end])) ++end;
    use(entries.data() + i, entries.data() + end);
    i = end;
  }
}

/// Fills the holder's side of a chunk: the blocks that the rank sends to owners, receives from
/// owners, and forwards.
void add_holder_side(const ExchangeContext& context, const RankMessages& messages,
                     const ChunkSpec& of, int32_t rank, RankChunk& chunk);

/// Fills RankChunk::owned with the matrices `ids`, with equal batch keys next to each other. `ids`
/// must ascend.
/// @return  A map from each matrix to its index in RankChunk::owned.
std::map<int32_t, int32_t> add_owned(const ExchangeContext& context,
                                     const std::vector<int32_t>& ids, RankChunk& chunk);

/// Adds the messages that a rank forwards if the return has two levels. Each of them contains all
/// data that the rank has received from owners. This data is at the start of its receive buffer.
void add_relay_sends(const Layout& layout, int32_t rank, int32_t block, RankChunk& chunk);
/// Adds a forwarded message to `regions`. All messages from the same forwarding rank form one
/// region.
void add_relayed(const Region& message, std::vector<Region>& regions);

/// Fills the owner's side of a chunk: RankChunk::owned, the blocks that are copied between the
/// owned matrices and the messages, and, for partial gradients, RankChunk::owner_state.
void add_owner_side(const ExchangeContext& context, const RankMessages& messages, RankChunk& chunk);

}  // namespace muonrt
