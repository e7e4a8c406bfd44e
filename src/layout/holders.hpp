#pragma once

#include <cstdint>
#include <vector>

#include "layout/layout.hpp"

namespace muonrt {

/// The holders of one matrix. The ranks in replicas[k], in shard order, together hold it exactly
/// once.
struct MatrixHolders {
  std::vector<std::vector<int>> replicas;
};

/// The shards from the end of the run before up to `end`, which hold `numel` elements each.
struct ShardRun {
  int64_t end, numel;
  friend bool operator==(const ShardRun&, const ShardRun&) = default;
};
using ShardRuns = std::vector<ShardRun>;

/// Adds a shard to the end of the list.
void add_shards(ShardRuns& runs, int64_t count, int64_t numel);
/// Returns the elements of shard `shard`.
int64_t numel_of(const ShardRuns& runs, int64_t shard);

/// Returns the elements of a tensor that each shard holds, by Layout::shard_index. Neighboring runs
/// differ. The time grows with the number of runs, which for even cuts is 1, and not with the
/// number of shards, except for row bounds and flat ranges.
ShardRuns shard_runs(const Layout& layout);
/// The same for matrix `e` of a stack, over the shards of a replica of holders_of.
ShardRuns shard_runs(const Layout& stack, int64_t e);

/// Returns the number of matrices of a layout: the size of dim 0 of a 3-D stack, otherwise 1.
int64_t matrix_count(const Layout& layout);

/// Returns the holders of the matrix of a layout (index 0, at most 2 dims) or of matrix
/// `matrix_index` of a 3-D stack. A matrix has the whole shard groups as holders, including ranks
/// with an empty shard, because these may own it. For a matrix of a
/// stack, the mesh dims that cut dim 0 select the ranks that hold it, and the other sharding dims
/// divide these into shard groups.
/// Replicas are in the order of the replica index; the replicas of a partial dim hold partial
/// gradients. Errors: INVALID_ARGUMENT for an index out of range or more than 3 dims.
MatrixHolders holders_of(const Layout& layout, int64_t matrix_index);

/// Returns a number that is equal for two matrices of a layout if and only if the same ranks hold
/// both.
int64_t holder_class(const Layout& layout, int64_t matrix_index);

/// Returns the mesh dims whose ranks hold different shards of one matrix of a stack, ascending.
std::vector<int> matrix_shard_dims(const Layout& stack);

}  // namespace muonrt
