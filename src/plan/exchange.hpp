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

/// Messages begin at this boundary inside their buffer.
constexpr int64_t kMessageAlignment = 64;

/// Lays messages out in a buffer, one after the other.
class MessageCursor {
 public:
  explicit MessageCursor(int64_t element_bytes) : element_bytes_(element_bytes) {}
  void begin_message() { begin_ = end_ = total(); }
  /// Appends elements; returns where they begin, in elements from the start of the buffer.
  int64_t take(int64_t numel) {
    const int64_t at = end_ / element_bytes_;
    end_ += numel * element_bytes_;
    return at;
  }
  Region region(int32_t peer) const { return {peer, begin_, end_ - begin_}; }
  /// Bytes of the buffer, a multiple of kMessageAlignment.
  int64_t total() const { return round_up(end_, kMessageAlignment); }

 private:
  int64_t element_bytes_, begin_ = 0, end_ = 0;
};

/// What both sides derive their copy lists from, equal on every rank.
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
  /// `block` of a matrix, with the factors on its update and its place in the tensor.
  ShardBlock shard_block(int32_t id, const Block& block, int64_t packed_offset) const;
};

/// Calls `use(first, last)` for the pieces of each message in turn.
template <class Use>
void for_each_message(const std::vector<MessageEntry>& blocks, const Use& use) {
  for (size_t i = 0; i < blocks.size();) {
    const auto same = [&](const MessageEntry& p) {
      return p.from == blocks[i].from && p.to == blocks[i].to && p.owner == blocks[i].owner;
    };
    size_t end = i;
    while (end < blocks.size() && same(blocks[end])) ++end;
    use(blocks.data() + i, blocks.data() + end);
    i = end;
  }
}

/// The holder's side of a slot: pieces that it sends to owners, gets back, and forwards.
void add_holder_side(const ExchangeContext& context, const RankMessages& messages,
                     const ChunkSpec& of, int32_t rank, RankChunk& chunk);

/// Fills RankChunk::owned with `ids` (ascending), equal shapes adjacent.
/// @return  for each matrix its index there.
std::map<int32_t, int32_t> add_owned(const ExchangeContext& context,
                                     const std::vector<int32_t>& ids, RankChunk& chunk);

/// A rank that forwards sends all that owners sent to it, as it lies at the head of its buffer.
void add_relay_sends(const Layout& layout, int32_t rank, int32_t block, RankChunk& chunk);
/// One more of the messages that a rank forwards, which arrive as one.
void add_relayed(const Region& message, std::vector<Region>& regions);

/// The owner's side: where the pieces lie in the matrices that it owns and in the messages. Fills
/// RankChunk::owned, and what is kept of them where the slot's kind is kPartialGrads.
void add_owner_side(const ExchangeContext& context, const RankMessages& messages, RankChunk& chunk);

}  // namespace muonrt
