#pragma once

#include <cstdint>
#include <vector>

#include "plan/owners/ownership.hpp"

namespace muonrt {

/// Items that are interchangeable because they have equal cost, set and shape. Thousands of experts
/// form a few dozen classes, so planning takes little time.
struct OwnerClass {
  int64_t cost;
  int32_t set, shape;
  int32_t begin, end;  // range of OwnerClasses::order
  int32_t count() const { return end - begin; }
};

struct OwnerClasses {
  std::vector<OwnerClass> classes;  // ordered by descending cost, then by set, then by first item
  std::vector<int32_t> order;       // items, class by class; ascending inside a class
};

OwnerClasses classify(const OwnerProblem& problem);

/// The number of items of one class that a rank owns.
struct Share {
  int32_t cls, count;
};

/// The loads of all ranks, and the items of each class that they own.
struct Shares {
  std::vector<std::vector<Share>> of_rank;  // for each rank, in order of class; all counts are > 0
  std::vector<int64_t> load;
};

/// Moves and swaps items between ranks. Stops when no move or swap helps, when the makespan equals
/// `lower_bound`, or when the limit of trials is reached.
void rebalance(const OwnerProblem& problem, const OwnerClasses& classes, int64_t lower_bound,
               Shares& shares);

/// Returns a lower bound on the makespan, from the mean, the largest item and bin packing. The
/// bound considers all usable ranks together, and each distinct set of ranks with the items that
/// only these ranks may own.
/// @param reached  Makespan of an existing assignment.
int64_t owner_lower_bound(const OwnerProblem& problem, const OwnerClasses& classes,
                          int64_t reached);

/// Returns a lower bound that is at least `known`. Considers the set of ranks to which items of
/// `rank`, the busiest rank, can move directly or through other ranks. No item of these ranks can
/// leave this set.
int64_t reachable_bound(const OwnerProblem& problem, const OwnerClasses& classes,
                        const Shares& shares, int64_t known, int32_t rank);

}  // namespace muonrt
