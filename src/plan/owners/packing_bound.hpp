#pragma once

#include <cstdint>
#include <vector>

namespace muonrt {

/// A number of items with equal cost.
struct CostCount {
  int64_t cost, count;
};

/// Returns a lower bound, at least `known`, on the makespan of `items` on `ranks` equal ranks. The
/// items must have distinct costs, in descending order. The bound is the best of five: the mean,
/// the largest item, the pigeonhole bound, and two bounds for bin packing. The pigeonhole bound is
/// based on the fact that one of m ranks must get at least k + 1 of the k m + 1 largest items.
/// @param reached  A makespan that is known to be possible, for these items or for a larger problem
///     that contains them. Larger bounds are not tried.
int64_t packing_bound(const std::vector<CostCount>& items, int64_t ranks, int64_t known,
                      int64_t reached);

}  // namespace muonrt
