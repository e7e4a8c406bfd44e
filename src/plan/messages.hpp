#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "plan/plan.hpp"
#include "plan/relay.hpp"
#include "plan/slice_sources.hpp"

namespace muonrt {

// The messages of a chunk, from which both the block lists of a rank and the traffic report of all
// ranks are derived. A message has at least one element, and a rank may send a message to itself.
// Chunks that the caller's functions transfer have no messages.

enum class Exchange { kGather, kReturn, kRelay };

/// Pass this value instead of a rank to iterate over the messages of all ranks.
constexpr int32_t kEveryRank = -1;

/// The elements of one matrix in a message. The entries of a message are in ascending order of the
/// matrix. A forwarded message contains the entries of all owners unchanged, so they are ordered by
/// owner, then by matrix.
struct MessageEntry {
  Exchange exchange;
  int32_t from, to;
  int32_t owner, matrix;
  Holder holder;  // the holder that sends in a gather, or receives in a return
};

/// Returns the layout of the first parameter of the chunk. If the return has two levels, equal
/// shards are on the same ranks for all parameters of the chunk, so any parameter could be chosen.
const Layout& front_layout(const Plan& plan, const ChunkSpec& chunk);

/// Returns the replicas to which the owner of `m` sends the update directly. If the return has two
/// levels, the holders in these replicas forward the update to the other replicas.
std::vector<int32_t> returned_replicas(const Plan& plan, const ChunkSpec& chunk, const Matrix& m);

/// Calls `use(holder, numel)` for each holder in a replica whose shard is not empty.
/// @param runs  Number of elements of the matrix on each shard.
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

/// The messages of a rank in a chunk of matrices. Each list is in the order in which its messages
/// are stored.
struct RankMessages {
  std::vector<int32_t> owned;  // ids of the matrices that the rank owns, ascending
  std::vector<MessageEntry> gather_sends, gather_receives, return_sends, return_receives,
      relay_receives;
};
RankMessages messages_of(const Plan& plan, BlockTable& blocks, const ChunkSpec& chunk,
                         int32_t rank);

/// The ranks that hold the same elements as `rank` in a chunk of slices. Each of them owns one
/// slice of every segment of the chunk, receives the partial gradients of its slices, and sends the
/// new values to the others.
class SliceGroup {
 public:
  struct Member {
    int32_t rank, replica;
    int64_t number;     // index of its slice in each segment
    int64_t numel = 0;  // number of elements of its slices in all segments
  };

  /// Creates the group of `rank`. `chunk` must outlive it. If `rank` is not in the mesh, the group
  /// has no members.
  SliceGroup(const Plan& plan, const ChunkSpec& chunk, int32_t rank);

  const std::vector<Member>& members() const { return members_; }  // in ascending order of rank
  const Member& member(int32_t rank) const;                        // `rank` must be a member
  /// Returns the range of local elements that the member's slice of segment `s` contains.
  std::pair<int64_t, int64_t> range(size_t s, const Member& owner) const;
  /// Returns true if `owner` sends the new values of its slices directly to `to`. If the return has
  /// two levels, also returns true if `to` is the owner itself, so that everything that the owner
  /// forwards is contiguous.
  bool returns(const Member& owner, const Member& to) const;

  /// Calls `use(exchange, from, to)` for each message that `rank` sends or receives in the gather
  /// and the return, ordered by the owner, then by the other rank. Omits the gather if gradients
  /// have a separate layout; see SplitGather.
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
  /// For each segment, the number of local elements of its parameter. It is equal on all members.
  std::vector<int64_t> local_;
  int32_t replicas_ = 0;
  bool gathers_ = false;
};

/// The messages of the gather in a chunk of slices whose gradients have a separate layout.
class SplitGather {
 public:
  /// The elements of one segment that a message contains.
  struct Share {
    size_t segment;
    std::vector<SharedBlock> blocks;
  };

  /// `plan` and `chunk` must outlive the object.
  SplitGather(const Plan& plan, const ChunkSpec& chunk);

  /// Calls `use(from, to, shares)` for each message that `rank` sends or receives. The messages are
  /// ordered by the owner that receives them, and then by the holder that sends them.
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
  std::vector<int32_t> owners_;  // in ascending order
  std::vector<SliceSources> sources_;
};

}  // namespace muonrt
