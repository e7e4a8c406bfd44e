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
};

/// Returns the layout of one parameter of the chunk. If the return takes two levels, a rank has the
/// same equal holders in the layouts of all parameters.
const Layout& front_layout(const Plan& plan, const ChunkSpec& chunk);

/// Returns the replicas to whose holders the owner of `m` returns its update itself. If the return
/// takes two levels, the holders in the other replicas receive it from these.
std::vector<int32_t> returned_replicas(const Plan& plan, const ChunkSpec& chunk, const Matrix& m);

/// Calls `use(holder, numel)` for each holder in a replica that has elements.
/// @param runs  of the matrix, by shard.
template <class Use>
void for_each_holder(const HolderGroup& group, const ShardRuns& runs, int32_t replica,
                     const Use& use) {
  for (int32_t p = 0; p < group.partial_count; ++p) {
    int32_t shard = 0;
    for (const ShardRun& run : runs) {
      for (; run.numel > 0 && shard < run.end; ++shard)
        use(Holder{group.rank_of(replica, p, shard), replica, shard, p}, run.numel);
      shard = static_cast<int32_t>(run.end);
    }
  }
}

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
