#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "plan/plan.hpp"
#include "plan/relay.hpp"
#include "plan/slice_sources.hpp"

namespace muonrt {

// The messages of a chunk. The block lists of a rank and the traffic of all ranks are both derived
// from them. A message has at least one element, and a rank may be its own peer. Chunks that the
// caller's functions transfer have no messages.

enum class Exchange { kGather, kReturn, kRelay };

/// Instead of a rank: the messages of all ranks.
constexpr int32_t kEveryRank = -1;

/// The elements of one matrix in a message. The entries of a message ascend by matrix. A relayed
/// message is forwarded unchanged, so its entries ascend by owner, then by matrix.
struct MessageEntry {
  Exchange exchange;
  int32_t from, to;
  int32_t owner, matrix;
  Holder holder;  // `from` in a gather, else `to`
  int64_t numel;  // elements
};

/// Returns the layout of one parameter of the chunk. If the return takes two levels, a rank has the
/// same equal holders in the layouts of all parameters.
const Layout& front_layout(const Plan& plan, const ChunkSpec& chunk);

/// The messages of a chunk of matrices.
class MatrixMessages {
 public:
  /// All arguments must outlive the object.
  MatrixMessages(const Plan& plan, BlockTable& blocks, const ChunkSpec& chunk)
      : plan_(plan), blocks_(blocks), chunk_(chunk) {
    if (chunk.relay > 0) equal_dims_ = front_layout(plan, chunk).full_replica_dims();
  }

  /// Calls `use(entry)` for each entry of matrix `id` that `rank` sends or receives. For the owner
  /// this includes the entries that other ranks forward; forwards_to (relay.hpp) returns to which
  /// ranks.
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
      if (plan_.every_rank() && holder.rank != m.owner) return;
      const int64_t numel = blocks_.numel(m.param, m.index, holder);
      if (numel == 0) return;
      MessageEntry entry{Exchange::kReturn, m.owner, holder.rank, m.owner, id, holder, numel};
      if (chunk_.relay > 0)
        route(entry, head_replica(holder.replica, m.replica, chunk_.relay, group.replicas));
      use(entry);
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
  void route(MessageEntry& entry, int32_t head);

  const Plan& plan_;
  BlockTable& blocks_;
  const ChunkSpec& chunk_;
  std::vector<int> equal_dims_;  // if relayed: the mesh dims over which holders are equal
};

/// The messages of a rank in a chunk of matrices; each list is in the order of its messages.
struct RankMessages {
  std::vector<int32_t> owned;  // matrices, ascending
  std::vector<MessageEntry> gather_sends, gather_receives, return_sends, return_receives,
      relay_receives;
};
RankMessages messages_of(const Plan& plan, BlockTable& blocks, const ChunkSpec& chunk,
                         int32_t rank);

/// The ranks that hold the same elements as `rank` in a chunk of slices. Each rank owns a slice of
/// every segment of the chunk. It receives the partial gradients of its slices and sends the new
/// values to the others.
class SliceGroup {
 public:
  struct Member {
    int32_t rank, replica;
    int64_t number;     // index of its slices
    int64_t numel = 0;  // elements of its slices, all segments together
  };

  /// `chunk` must outlive the object. Has no members if `rank` is not in the mesh.
  SliceGroup(const Plan& plan, const ChunkSpec& chunk, int32_t rank);

  const std::vector<Member>& members() const { return members_; }  // by rank
  const Member& member(int32_t rank) const;                        // `rank` must be a member
  /// Returns the local elements of a member's slice of segment `s`.
  std::pair<int64_t, int64_t> range(size_t s, const Member& owner) const;
  /// Returns true if an owner sends its slices to `to` directly. If the return takes two levels,
  /// the owner also sends to itself, so that everything it forwards is contiguous.
  bool returns(const Member& owner, const Member& to) const;

  /// Calls `use(exchange, from, to)` for each message of a gather and a return that `rank` sends or
  /// receives, by owner, then by the other rank. Gathers of gradients with a separate layout are
  /// not included; see SplitGather.
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
  const ChunkSpec& chunk_;
  std::vector<Member> members_;
  std::vector<int64_t> local_;  // local elements of each segment's parameter, equal on all members
  int32_t replicas_ = 0;
  bool gathers_ = false;
};

/// The gather of a chunk of slices whose gradients have a separate layout.
class SplitGather {
 public:
  /// The elements of one segment in a message.
  struct Share {
    size_t segment;
    std::vector<SharedBlock> blocks;
  };

  /// `plan` and `chunk` must outlive the object.
  SplitGather(const Plan& plan, const ChunkSpec& chunk);

  /// Calls `use(from, to, shares)` for each message that `rank` sends or receives, by owner (the
  /// receiver), then by holder.
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
  const ChunkSpec& chunk_;
  std::vector<int32_t> owners_;  // ascending
  std::vector<SliceSources> sources_;
};

}  // namespace muonrt
