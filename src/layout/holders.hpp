#pragma once

#include <cstdint>
#include <vector>

#include "layout/layout.hpp"

namespace muonrt {

/// Who holds one matrix. replicas[k] = ranks, in shard order, that together hold it exactly once.
struct MatrixHolders {
  std::vector<std::vector<int>> replicas;
};

/// Matrices of a layout: the size of dim 0 of a 3-D stack, else 1.
int64_t matrix_count(const Layout& layout);

/// Holders of the layout's matrix (index 0, at most 2 dims: whole shard groups, ranks with nothing
/// included, for they may own it), or of matrix `matrix_index` of a 3-D stack: the ranks whose
/// coordinates on the mesh dims that cut dim 0 hold it, in groups over the other sharding dims.
/// Replicas come in the order of the replica index; those of a partial dim hold addends.
/// Errors: INVALID_ARGUMENT for an index out of range or more than 3 dims.
MatrixHolders holders_of(const Layout& layout, int64_t matrix_index);

/// Equal for two matrices of one layout exactly if the same ranks hold both.
int64_t holder_class(const Layout& layout, int64_t matrix_index);

}  // namespace muonrt
