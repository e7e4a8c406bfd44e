#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "plan/plan.hpp"
#include "plan/relay.hpp"
#include "plan/slice_sources.hpp"

namespace muonrt {

// Which messages a slot has, said once: a rank's copy lists and the traffic of all ranks read it
// here. A message has at least one element; a rank may be its own peer. Slots that the caller's
// functions carry have none.

enum class Exchange { kGather, kReturn, kRelay };

/// In place of a rank: the messages of all.
constexpr int32_t kEveryRank = -1;

/// What a message holds of one matrix. A message holds its pieces by ascending matrix; what is
/// relayed lies as it came, by ascending owner, then matrix.
struct MessageEntry {
  Exchange exchange;
  int32_t from, to;
  int32_t owner, matrix;
  Holder holder;  // `from` in a gather, else `to`
  int64_t numel;  // elements
};

/// The messages of a slot of matrices.
class MatrixMessages {
 public:
  /// All are borrowed.
  MatrixMessages(const Plan& plan, BlockTable& blocks, const ChunkSpec& chunk)
      : plan_(plan), blocks_(blocks), slot_(chunk) {}

  /// Calls `use(piece)` for each piece of a matrix that `rank` sends or receives; for its owner
  /// also for those that others forward. Whom a rank forwards to says forwards_to (relay.hpp).
  template <class Use>
  void for_each(int32_t id, int32_t rank, const Use& use) {
    const Matrix& m = plan_.matrices()[static_cast<size_t>(id)];
    for_each_holder(
        plan_.holders().grad_group(m.param, m.index), m.owner, rank, [&](const Holder& holder) {
          if (holder.replica != m.grad_replica) return;
          const int64_t numel = blocks_.grad_numel(m.param, m.index, holder);
          if (numel > 0)
            use(MessageEntry{Exchange::kGather, holder.rank, m.owner, m.owner, id, holder, numel});
        });
    const HolderGroup& group = plan_.holders().group(m.param, m.index);
    for_each_holder(group, m.owner, rank, [&](const Holder& holder) {
      if (plan_.each_replica() && holder.replica != m.replica) return;
      const int64_t numel = blocks_.numel(m.param, m.index, holder);
      if (numel == 0) return;
      MessageEntry block{Exchange::kReturn, m.owner, holder.rank, m.owner, id, holder, numel};
      if (slot_.relay > 0)
        route(block, head_replica(holder.replica, m.replica, slot_.relay, group.replicas));
      use(block);
    });
  }

 private:
  template <class Use>
  static void for_each_holder(const HolderGroup& group, int32_t owner, int32_t rank,
                              const Use& use) {
    if (rank == kEveryRank || rank == owner) {
      for (const Holder& holder : group.members) use(holder);
    } else if (const Holder* holder = group.find(rank)) {
      use(*holder);
    }
  }
  void route(MessageEntry& block, int32_t head);

  const Plan& plan_;
  BlockTable& blocks_;
  const ChunkSpec& slot_;
  std::vector<std::vector<int>> equal_;  // where the slot relays: by rank, once asked for
};

/// A rank's messages of a slot of matrices, each list in the order of its messages.
struct RankMessages {
  std::vector<int32_t> owned;  // matrices, ascending
  std::vector<MessageEntry> gather_sends, gather_receives, return_sends, return_receives,
      relay_receives;
};
RankMessages messages_of(const Plan& plan, BlockTable& blocks, const ChunkSpec& chunk,
                         int32_t rank);

/// The ranks that hold what `rank` holds in a slot of slices. Each owns a slice of all the slot's
/// segments, which are its messages: addends come to it, new values go from it to the others.
class SliceGroup {
 public:
  struct Member {
    int32_t rank, replica;
    int64_t number;     // of its slices
    int64_t numel = 0;  // of its slices of all segments
  };

  /// `slot` is borrowed. Without members where `rank` is not in the mesh.
  SliceGroup(const Plan& plan, const ChunkSpec& chunk, int32_t rank);

  const std::vector<Member>& members() const { return members_; }  // by rank
  const Member& member(int32_t rank) const;                        // one of them
  /// Local elements of a member's slice of segment `s`.
  std::pair<int64_t, int64_t> range(size_t s, const Member& owner) const;
  /// Whether an owner sends its slices to `to` itself. In two levels to itself, too, so that what
  /// it forwards lies together.
  bool returns(const Member& owner, const Member& to) const;

  /// Calls `use(exchange, from, to)` for each message of a gather and a return that `rank` sends or
  /// receives, by owner, then by the other. Gathers of gradients of layouts of their own are not
  /// among them (SplitGather).
  template <class Use>
  void for_each(int32_t rank, const Use& use) const {
    for (const Member& owner : members_) {
      if (owner.numel == 0) continue;
      const bool whole = rank == kEveryRank || rank == owner.rank;
      for (const Member& other : whole ? std::span(members_) : std::span(&member(rank), 1)) {
        if (gathers_ && other.replica == owner.replica) use(Exchange::kGather, other, owner);
        if (returns(owner, other)) use(Exchange::kReturn, owner, other);
      }
    }
  }

 private:
  const ChunkSpec& slot_;
  std::vector<Member> members_;
  std::vector<int64_t> local_;  // elements of each segment's parameter on any member
  int32_t replicas_ = 0;
  bool gathers_ = false;
};

/// The gather of a slot of slices whose gradients have layouts of their own.
class SplitGather {
 public:
  /// What a message holds of a segment.
  struct Share {
    size_t segment;
    std::vector<SharedBlock> blocks;
  };

  /// `plan` and `slot` are borrowed.
  SplitGather(const Plan& plan, const ChunkSpec& chunk);

  /// Calls `use(from, to, shares)` for each message that `rank` sends or receives, by owner (who
  /// receives), then by holder.
  template <class Use>
  void for_each(int32_t rank, const Use& use) {
    for (const int32_t owner : owners_) {
      const bool whole = rank == kEveryRank || rank == owner;
      for (const int32_t holder : whole ? holders_of(owner) : std::vector<int32_t>{rank}) {
        const std::vector<Share> shares = shares_of(owner, holder);
        if (!shares.empty()) use(holder, owner, shares);
      }
    }
  }

 private:
  std::vector<int32_t> holders_of(int32_t owner) const;
  std::vector<Share> shares_of(int32_t owner, int32_t holder);

  const Plan& plan_;
  const ChunkSpec& slot_;
  std::vector<int32_t> owners_;  // ascending
  std::vector<SliceSources> sources_;
};

/// The layout of one of the slot's parameters. Where a return takes two levels, a rank has the same
/// equal holders in all of them.
const Layout& front_layout(const Plan& plan, const ChunkSpec& chunk);

}  // namespace muonrt
