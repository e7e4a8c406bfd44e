#pragma once

#include <cstdint>
#include <vector>

namespace muonrt {

/// A matrix that needs an owner.
struct OwnerItem {
  int64_t cost;   // cost in FLOPs, >= 0
  int32_t set;    // index into OwnerProblem::sets
  int32_t shape;  // items of equal shape are distributed to the ranks in turn
};

/// The assignment problem. The items are in the order of their names, which breaks ties.
struct OwnerProblem {
  int32_t ranks = 1;
  /// Sets of ranks that may own an item. Each set is in ascending order, distinct and not empty.
  std::vector<std::vector<int32_t>> sets;
  std::vector<OwnerItem> items;
  /// For each set, the replica of each of its ranks. Without replicas, the list of a set, or the
  /// whole list, may be empty.
  std::vector<std::vector<int32_t>> replicas = {};
};

struct Ownership {
  std::vector<int32_t> owner;  // for each item, its rank
  std::vector<int64_t> load;   // for each rank, the cost of its items
  int64_t makespan = 0;        // the largest load
  int64_t lower_bound = 0;     // no assignment has a smaller makespan
};

/// Assigns each item, largest first, to the least loaded rank of its set. Items that many ranks may
/// own are distributed so that smaller sets of ranks can still balance their own items. Then moves
/// one item, or exchanges up to four items, between two ranks as long as this reduces the larger of
/// the two loads. The number of trials is limited.
///
/// Ties are broken by the order of the items, then by rank. The result depends only on the problem,
/// and not on how its sets are numbered.
Ownership assign_owners(const OwnerProblem& problem);

}  // namespace muonrt
