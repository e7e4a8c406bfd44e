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

/// The assignment problem. Ties are broken by the order of the items, which is the order of their
/// names.
struct OwnerProblem {
  int32_t ranks = 1;
  /// Sets of ranks that may own an item. Each set is in ascending order, distinct and not empty.
  std::vector<std::vector<int32_t>> sets;
  std::vector<OwnerItem> items;
  /// For each set, the replica of each of its ranks. It may be empty for a set, or for all sets, if
  /// there are no replicas.
  std::vector<std::vector<int32_t>> replicas = {};
};

struct Ownership {
  std::vector<int32_t> owner;  // for each item, its rank
  std::vector<int64_t> load;   // for each rank, the cost of its items
  int64_t makespan = 0;        // the largest load
  int64_t lower_bound = 0;     // no assignment has a smaller makespan
};

/// Assigns each item, largest first, to the least loaded rank of its set. Items that many ranks may
/// own are distributed so that smaller sets of ranks can balance their own items. Afterwards, moves
/// one item, or exchanges up to four items, between two ranks as long as this reduces the load of
/// the more loaded rank. The number of trials is limited. Ties are broken by the order of the
/// items, then by rank. The result depends only on the problem, and not on how its sets are
/// numbered.
Ownership assign_owners(const OwnerProblem& problem);

}  // namespace muonrt
