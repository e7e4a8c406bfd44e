#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "layout/blocks.hpp"
#include "layout/holders.hpp"
#include "plan/problem.hpp"

namespace muonrt {

/// The indices of a rank among the holders of a matrix: `replica` over the replicating mesh dims,
/// `partial_index` over the mesh dims with partial gradients.
struct Holder {
  int32_t rank, replica, shard, partial_index = 0;
};

/// The ranks that hold a matrix. Thousands of matrices share one group.
struct HolderGroup {
  std::vector<Holder> members;  // by rank, ascending
  int32_t shards = 0;           // one partial gradient of one replica holds each once
  int32_t replicas = 0, partial_count = 0;
  int32_t candidates = 0;      // ranks that may own it: index into HolderTable::candidates()
  std::vector<int32_t> ranks;  // by replica, partial index and shard
  bool consecutive = true;     // each shard is on the rank after that of the shard before

  /// Returns null if `rank` is not a holder.
  const Holder* find(int32_t rank) const;
  int32_t rank_of(int32_t replica, int32_t partial_index, int64_t shard) const {
    return ranks[static_cast<size_t>((int64_t{replica} * partial_count + partial_index) * shards +
                                     shard)];
  }
};

/// The distinct layouts of a problem and the holders of their matrices. Matrices of equal layout
/// share one entry. Indices stay valid when the table is copied.
class HolderTable {
 public:
  HolderTable() = default;
  /// Errors: INVALID_ARGUMENT for a Muon parameter that is neither a matrix nor a stack, or a rank
  /// outside the world.
  HolderTable(const std::vector<ParamSpec>& params, int32_t world);

  /// Returns an index that is equal for parameters of equal layout and parts.
  int32_t layout_of(int32_t param) const { return layout_of_[static_cast<size_t>(param)]; }
  int32_t layouts() const { return static_cast<int32_t>(layouts_.size()); }
  /// Returns the holders of matrix `index` of a Muon parameter.
  const HolderGroup& group(int32_t param, int64_t index) const;
  /// Returns the holders of the gradient of matrix `index`; others if it has a separate layout.
  const HolderGroup& grad_group(int32_t param, int64_t index) const;
  /// Returns the holders of an AdamW parameter with partial gradients.
  const HolderGroup& whole_group(int32_t param) const;
  /// Returns an index in [0, kinds()) that is equal for matrices whose ranks hold equal blocks.
  int32_t kind(int32_t param, int64_t index) const;
  int32_t kinds() const { return kinds_; }
  int32_t grad_kind(int32_t param, int64_t index) const;
  /// The distinct sets of ranks that may own a matrix, each ascending.
  const std::vector<std::vector<int32_t>>& candidates() const { return candidates_; }

 private:
  struct Entry {
    int32_t first_kind = -1;      // -1: no Muon parameter has this layout
    std::vector<int32_t> groups;  // by matrix: index into groups_
    int32_t whole = -1;           // group of the whole tensor, for AdamW
  };
  /// What the constructor has entered.
  struct Known {
    std::unordered_map<uint64_t, int32_t> layouts;        // by digest
    std::map<std::vector<int64_t>, int32_t> groups = {};  // by mesh, replicating dims and holders
  };
  int32_t enter(const ParamSpec& spec, Known& known, int32_t world);
  void find_groups(const ParamSpec& spec, Entry& entry, Known& known);
  int32_t add_group(const Layout& layout, const MatrixHolders& holders);
  static constexpr int64_t kWholeTensor = -1;
  /// Returns the group of the ranks that hold a tensor, or matrix `index` of a stack. Layouts that
  /// differ only in their shapes share it.
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

/// The blocks of matrices on ranks; equal ones are computed once. Not thread-safe.
class BlockTable {
 public:
  BlockTable(const std::vector<ParamSpec>& params, const HolderTable& holders)
      : params_(params), holders_(holders), runs_(static_cast<size_t>(holders.kinds())) {}
  const std::vector<Block>& blocks(int32_t param, int64_t index, const Holder& holder);
  /// The same for the gradient; `holder` is one of its holders.
  const std::vector<Block>& grad_blocks(int32_t param, int64_t index, const Holder& holder);
  /// Return the number of elements of the matrix, or of its gradient, that each shard holds.
  const ShardRuns& runs(int32_t param, int64_t index);
  const ShardRuns& grad_runs(int32_t param, int64_t index);

 private:
  const ShardRuns& find_runs(int32_t kind, const ParamSpec& spec, const Layout& layout,
                             int64_t index, const HolderGroup& group);
  const std::vector<Block>& find(int32_t kind, const ParamSpec& spec, const Layout& layout,
                                 int64_t index, const Holder& holder);

  const std::vector<ParamSpec>& params_;
  const HolderTable& holders_;
  std::unordered_map<uint64_t, std::vector<Block>> known_;  // by kind and shard
  std::vector<ShardRuns> runs_;                             // by kind; empty: unknown
};

}  // namespace muonrt
