#pragma once

#include <cstdint>
#include <vector>

#include "plan/owners/ownership.hpp"

namespace muonrt {

/// Items that are interchangeable: same cost, same set, same shape. Thousands of experts are a few
/// dozen classes, which is what makes planning cheap.
struct OwnerClass {
  int64_t cost;
  int32_t set, shape;
  int32_t begin, end;  // range of OwnerClasses::order
  int32_t count() const { return end - begin; }
};

struct OwnerClasses {
  std::vector<OwnerClass> classes;  // largest cost first, then smallest set, then first item
  std::vector<int32_t> order;       // items of a class, ascending
};

OwnerClasses classify(const OwnerProblem& problem);

/// How many items of a class a rank has.
struct Share {
  int32_t cls, count;
};

/// Who has how many of what; loads follow.
struct Shares {
  std::vector<std::vector<Share>> of_rank;  // by class, ascending, counts > 0
  std::vector<int64_t> load;
};

/// Moves and swaps items between ranks until none helps, the makespan is `lower_bound`, or the
/// trials are used up.
void rebalance(const OwnerProblem& problem, const OwnerClasses& classes, int64_t lower_bound,
               Shares& shares);

/// Bound from the mean, the largest item and packing, for all ranks that can be used together and
/// for every distinct set with the items that only its ranks may own.
/// @param reached  a makespan known to be possible.
int64_t owner_lower_bound(const OwnerProblem& problem, const OwnerClasses& classes,
                          int64_t reached);

/// `known`, or a better bound from the ranks reachable from `rank`, the busiest: every item of
/// theirs can only go to them.
int64_t reachable_bound(const OwnerProblem& problem, const OwnerClasses& classes,
                        const Shares& shares, int64_t known, int32_t rank);

}  // namespace muonrt
