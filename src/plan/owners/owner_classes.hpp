#pragma once

#include <cstdint>
#include <vector>

#include "plan/owners/ownership.hpp"

namespace muonrt {

/// Items that are interchangeable, because cost, set and shape are equal. Thousands of experts form
/// a few dozen classes, so planning is cheap.
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

/// The number of items of a class that a rank has.
struct Share {
  int32_t cls, count;
};

/// The shares and the loads of all ranks.
struct Shares {
  std::vector<std::vector<Share>> of_rank;  // ascending by class, counts > 0
  std::vector<int64_t> load;
};

/// Moves and swaps items between ranks until no change helps, the makespan is `lower_bound`, or the
/// limit of trials is reached.
void rebalance(const OwnerProblem& problem, const OwnerClasses& classes, int64_t lower_bound,
               Shares& shares);

/// Returns a lower bound from the mean, the largest item and packing. It considers all usable ranks
/// together, and every distinct set with the items that only its ranks may own.
/// @param reached  a makespan that is known to be possible.
int64_t owner_lower_bound(const OwnerProblem& problem, const OwnerClasses& classes,
                          int64_t reached);

/// Returns `known`, or a better bound from the ranks that are reachable from `rank`, the busiest
/// one: their items can only move between these ranks.
int64_t reachable_bound(const OwnerProblem& problem, const OwnerClasses& classes,
                        const Shares& shares, int64_t known, int32_t rank);

}  // namespace muonrt
