#pragma once

#include <cstdint>
#include <vector>

namespace muonrt {

/// One matrix that needs an owner.
struct OwnerItem {
  int64_t cost;   // FLOPs, >= 0
  int32_t set;    // index into OwnerProblem::sets
  int32_t shape;  // items of equal shape are distributed over the ranks in turn
};

/// The assignment problem. The order of the items (by name) breaks ties.
struct OwnerProblem {
  int32_t ranks = 1;
  std::vector<std::vector<int32_t>> sets;  // ranks that may own; ascending, distinct, none empty
  std::vector<OwnerItem> items;
};

struct Ownership {
  std::vector<int32_t> owner;  // by item
  std::vector<int64_t> load;   // by rank
  int64_t makespan = 0;        // largest load
  int64_t lower_bound = 0;     // no assignment has a smaller makespan
};

/// Assigns each item, largest first, to the least loaded rank of its set; ties are broken by order,
/// then by rank. Then improves the assignment until no move of one item and no swap of two makes
/// the more loaded of two ranks lighter, or a fixed number of trials is reached. A pure function of
/// the problem; the numbering of the sets does not matter.
Ownership assign_owners(const OwnerProblem& problem);

}  // namespace muonrt
