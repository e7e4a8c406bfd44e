#pragma once

#include <cstdint>
#include <vector>

#include "layout/layout.hpp"

namespace muonrt {

/// The ranks that hold one matrix. replicas[k] lists the ranks of replica k in shard order;
/// together, they hold every element of the matrix exactly once.
struct MatrixHolders {
  std::vector<std::vector<int>> replicas;
};

/// A run of consecutive shards that hold `numel` elements each. It begins at the end of the
/// previous run (the first one at shard 0) and stops before shard `end`.
struct ShardRun {
  int64_t end, numel;
  friend bool operator==(const ShardRun&, const ShardRun&) = default;
};
using ShardRuns = std::vector<ShardRun>;

/// Adds `count` shards to the end of the list.
void add_shards(ShardRuns& runs, int64_t count, int64_t numel);
/// Returns the number of elements of one shard.
int64_t numel_of(const ShardRuns& runs, int64_t shard);

/// Returns the number of elements in each shard of a tensor, in the order of Layout::shard_index().
/// Adjacent runs have different sizes. For cuts, the time grows only with the number of runs, which
/// is 1 if all shards are equal. For row bounds and flat ranges, the time grows with the number of
/// shards.
ShardRuns shard_runs(const Layout& layout);
/// For matrix `e` of a stack, returns the number of elements on each shard, in the order in which
/// holders_of() lists the ranks of a replica.
ShardRuns shard_runs(const Layout& stack, int64_t e);

/// Returns the number of matrices of a layout: the size of dim 0 for a 3-D stack, otherwise 1.
int64_t matrix_count(const Layout& layout);

/// Returns the ranks that hold one matrix of a layout, including ranks whose shard is empty,
/// because they may own the matrix. `matrix_index` selects a matrix of a 3-D stack, and is 0 for a
/// layout with at most 2 dims. In a stack, the mesh dims that cut dim 0 select the holders of a
/// matrix, and the other sharding dims divide the matrix into shards. Replicas are in the order of
/// the replica index. Replicas along a partial dim hold partial gradients.
/// Errors: INVALID_ARGUMENT if the index is out of range or the layout has more than 3 dims.
MatrixHolders holders_of(const Layout& layout, int64_t matrix_index);

/// Returns an identifier for the holders of a matrix. Two matrices of a layout have the same
/// identifier if and only if the same ranks hold them.
int64_t holder_class(const Layout& layout, int64_t matrix_index);

/// Returns the mesh dims along which ranks hold different shards of one matrix of a stack, in
/// ascending order.
std::vector<int> matrix_shard_dims(const Layout& stack);

}  // namespace muonrt
