#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "layout/blocks.hpp"
#include "layout/holders.hpp"
#include "plan/problem.hpp"

namespace muonrt {

/// A rank that holds a shard of a matrix. `replica` is the rank's index over the replicating mesh
/// dims, and `partial_index` its index over the mesh dims with partial gradients.
struct Holder {
  int32_t rank, replica, shard, partial_index = 0;
};

/// The ranks that hold a matrix. Thousands of matrices may refer to the same group.
struct HolderGroup {
  std::vector<Holder> members;  // in ascending order of rank
  /// Number of shards. In each replica, every partial gradient is divided into this number of
  /// shards.
  int32_t shards = 0;
  int32_t replicas = 0, partial_count = 0;
  /// Index into HolderTable::candidates(): the ranks that may own the matrix.
  int32_t candidates = 0;
  std::vector<int32_t> ranks;  // ordered by replica, partial index and shard
  bool consecutive = true;     // true if the ranks of successive shards are consecutive numbers

  /// Returns the entry of `rank`, or null if it is not a holder.
  const Holder* find(int32_t rank) const;
  int32_t rank_of(int32_t replica, int32_t partial_index, int64_t shard) const {
    return ranks[static_cast<size_t>((int64_t{replica} * partial_count + partial_index) * shards +
                                     shard)];
  }
};

/// The distinct layouts of a problem and the holders of their matrices. Parameters with equal
/// layouts share an entry. An index into the table is also valid in copies of the table.
class HolderTable {
 public:
  HolderTable() = default;
  /// Creates the table. Errors: INVALID_ARGUMENT if a Muon parameter is neither a matrix nor a
  /// stack, or if a mesh contains a rank outside the world.
  HolderTable(const std::vector<ParamSpec>& params, int32_t world);

  /// Returns an index that is the same for all parameters with equal layouts and parts.
  int32_t layout_of(int32_t param) const { return layout_of_[static_cast<size_t>(param)]; }
  int32_t layouts() const { return static_cast<int32_t>(layouts_.size()); }
  /// Returns the holders of matrix `index` of a Muon parameter.
  const HolderGroup& group(int32_t param, int64_t index) const;
  /// Returns the holders of the gradient of matrix `index`. They differ from group() if the
  /// gradient has a separate layout.
  const HolderGroup& grad_group(int32_t param, int64_t index) const;
  /// Returns the holders of an AdamW parameter with partial gradients.
  const HolderGroup& whole_group(int32_t param) const;
  /// Returns an index in [0, kinds()). If two matrices have the same index, every rank holds equal
  /// blocks of both.
  int32_t kind(int32_t param, int64_t index) const;
  int32_t kinds() const { return kinds_; }
  int32_t grad_kind(int32_t param, int64_t index) const;
  /// Returns the distinct sets of ranks that may own a matrix, each in ascending order.
  const std::vector<std::vector<int32_t>>& candidates() const { return candidates_; }

 private:
  struct Entry {
    /// First index that kind() returns for this layout; -1 if no Muon parameter has it.
    int32_t first_kind = -1;
    std::vector<int32_t> groups;  // for each matrix, its index into groups_
    int32_t whole = -1;           // index of the group of the whole tensor, for AdamW
  };
  /// Maps from keys to the entries that the constructor has already made.
  struct Known {
    std::unordered_map<uint64_t, int32_t> layouts;  // keys are digests
    /// Keys consist of the mesh, the replicating dims and the holders.
    std::map<std::vector<int64_t>, int32_t> groups = {};
  };
  int32_t enter(const ParamSpec& spec, Known& known, int32_t world);
  void find_groups(const ParamSpec& spec, Entry& entry, Known& known);
  int32_t add_group(const Layout& layout, const MatrixHolders& holders);
  static constexpr int64_t kWholeTensor = -1;
  /// Returns the group of the ranks that hold a tensor, or matrix `index` of a stack. Layouts that
  /// differ only in their shapes share a group.
  int32_t group_for(const Layout& layout, int64_t index, Known& known);
  int32_t intern_candidates(std::vector<int32_t> ranks);

  const HolderGroup& group_of(int32_t layout, int64_t index) const;

  std::vector<int32_t> layout_of_, grad_layout_of_;
  std::vector<Entry> layouts_;
  std::vector<HolderGroup> groups_;
  std::vector<std::vector<int32_t>> candidates_;
  std::unordered_multimap<uint64_t, int32_t> candidates_by_hash_;
  int32_t kinds_ = 0;
};

/// Computes the blocks of matrices that a rank holds. Blocks that occur again are computed once.
/// Not thread-safe.
class BlockTable {
 public:
  BlockTable(const std::vector<ParamSpec>& params, const HolderTable& holders)
      : params_(params), holders_(holders), runs_(static_cast<size_t>(holders.kinds())) {}
  const std::vector<Block>& blocks(int32_t param, int64_t index, const Holder& holder);
  /// Returns the blocks of the gradient that `holder` holds. `holder` must be in grad_group().
  const std::vector<Block>& grad_blocks(int32_t param, int64_t index, const Holder& holder);
  /// runs() returns the number of elements of the matrix on each shard; grad_runs() returns the
  /// same for its gradient.
  const ShardRuns& runs(int32_t param, int64_t index);
  const ShardRuns& grad_runs(int32_t param, int64_t index);

 private:
  const ShardRuns& find_runs(int32_t kind, const ParamSpec& spec, const Layout& layout,
                             int64_t index, const HolderGroup& group);
  const std::vector<Block>& find(int32_t kind, const ParamSpec& spec, const Layout& layout,
                                 int64_t index, const Holder& holder);

  const std::vector<ParamSpec>& params_;
  const HolderTable& holders_;
  /// Keys consist of the kind and the shard.
  std::unordered_map<uint64_t, std::vector<Block>> known_;
  std::vector<ShardRuns> runs_;  // indexed by kind; empty if not computed yet
};

}  // namespace muonrt
