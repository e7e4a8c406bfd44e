#pragma once

#include <cstdint>
#include <vector>

namespace muonrt {

/// One matrix that needs an owner.
struct OwnerItem {
  int64_t cost;   // FLOPs, >= 0
  int32_t set;    // index into OwnerProblem::sets
  int32_t shape;  // items with equal shape are spread over the ranks in turn
};

/// Which rank orthogonalizes which matrix: the items, in the order that breaks ties (by name).
struct OwnerProblem {
  int32_t ranks = 1;
  std::vector<std::vector<int32_t>> sets;  // ranks that may own; ascending, distinct, none empty
  std::vector<OwnerItem> items;
};

struct Ownership {
  std::vector<int32_t> owner;  // of each item
  std::vector<int64_t> load;   // of each rank
  int64_t makespan = 0;        // largest load
  int64_t lower_bound = 0;     // no assignment has a smaller makespan
};

/// Largest first to the least loaded rank of the item's set (ties by order, then by rank), improved
/// until no move of one item nor swap of two makes the more loaded of two ranks lighter, or a fixed
/// count of trials is used up. A pure function of the problem; the numbering of the sets does not
/// matter.
Ownership assign_owners(const OwnerProblem& problem);

}  // namespace muonrt
