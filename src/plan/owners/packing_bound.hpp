#pragma once

#include <cstdint>
#include <vector>

namespace muonrt {

/// Items of one cost.
struct CostCount {
  int64_t cost, count;
};

/// `known`, or a better bound on the makespan of `items` (largest cost first, costs distinct) on
/// `ranks` equal ranks: the best of mean, largest item, pigeonhole (of the k m + 1 largest items
/// some rank gets k + 1), and two bounds for packing into bins.
/// @param reached  a makespan known to be possible for a problem that contains this one; the bound
///     does not look past it.
int64_t packing_bound(const std::vector<CostCount>& items, int64_t ranks, int64_t known,
                      int64_t reached);

}  // namespace muonrt
