#pragma once

#include <cstdint>
#include <vector>

namespace muonrt {

/// Items of one cost.
struct CostCount {
  int64_t cost, count;
};

/// Returns `known`, or a better lower bound on the makespan of `items` (largest cost first, costs
/// distinct) on `ranks` equal ranks. It is the best of the mean, the largest item, pigeonhole (some
/// rank gets k + 1 of the k m + 1 largest items), and two bounds for bin packing.
/// @param reached  a makespan that is known to be possible for a problem that contains this one;
///     larger bounds are not tried.
int64_t packing_bound(const std::vector<CostCount>& items, int64_t ranks, int64_t known,
                      int64_t reached);

}  // namespace muonrt
