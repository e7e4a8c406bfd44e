#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/checked.hpp"
#include "plan/copy_list.hpp"
#include "plan/holder_table.hpp"
#include "plan/plan.hpp"

namespace muonrt {

/// Messages begin at this boundary inside their buffer.
constexpr int64_t kMessageAlignment = 64;

/// What a rank and a peer exchange of one matrix.
struct Part {
  int32_t peer, matrix;
  HolderPlace place;  // of the rank that holds it, which may be either of the two
};

/// What a rank gets back in a slot, and from whom.
struct Back {
  std::vector<Part> direct;         // from owners
  std::vector<Part> relayed;        // with the owner as peer; `head` says who forwards it
  std::vector<int32_t> forward_to;  // ranks that get all of `direct`, ascending
  /// Of relayed[i]: the rank that forwards it. `relayed` is sorted by (head, owner, matrix).
  std::vector<int32_t> head;
};

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
  const std::vector<Block>& blocks_of(int32_t id, const HolderPlace& place) const {
    return blocks.blocks(matrix(id).param, matrix(id).index, place);
  }
  const std::vector<Block>& grad_blocks_of(int32_t id, const HolderPlace& place) const {
    return blocks.grad_blocks(matrix(id).param, matrix(id).index, place);
  }
  /// `block` of a matrix, with the factors on its update and its place in the tensor.
  Piece piece(int32_t id, const Block& block, int64_t packed_offset) const;
};

/// The holder's side of a slot: parts it sends to owners, and gets back.
/// @param gather  parts of gradients that are gathered from this rank.
/// @param back    parts of all matrices that it holds. Lists by (peer, matrix), none empty.
void add_holder_side(const ExchangeContext& context, const std::vector<Part>& gather,
                     const Back& back, SlotPlan& slot);

/// What `rank` gets back of the matrices of `slot`.
Back back_of(const ExchangeContext& context, int rank, const Slot& slot);

/// Fills SlotPlan::owned with `ids` (ascending), equal shapes adjacent.
/// @return  for each matrix its index there.
std::map<int32_t, int32_t> add_owned(const ExchangeContext& context,
                                     const std::vector<int32_t>& ids, SlotPlan& slot);

/// The owner's side: where the parts lie in the matrices of `owned` (ascending ids) and in the
/// messages. Fills SlotPlan::owned, and what is kept of them where the slot's kind is kAddends.
void add_owner_side(const ExchangeContext& context, const std::vector<int32_t>& owned,
                    const Slot& of, SlotPlan& slot);

}  // namespace muonrt
