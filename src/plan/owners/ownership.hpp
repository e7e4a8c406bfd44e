#pragma once

#include <cstdint>
#include <vector>

namespace muonrt {

/// A matrix that needs an owner.
struct OwnerItem {
  int64_t cost;   // in FLOPs, >= 0
  int32_t set;    // index into OwnerProblem::sets
  int32_t shape;  // items of equal shape are distributed to the ranks in turn
};

/// The assignment problem. Ties are broken by the order of the items, which is the order of their
/// names.
struct OwnerProblem {
  int32_t ranks = 1;
  /// Sets of ranks that may own an item; each is ascending, distinct and not empty.
  std::vector<std::vector<int32_t>> sets;
  std::vector<OwnerItem> items;
  /// For each set, the replica of each of its ranks. Empty for sets (or for all sets) without
  /// replicas.
  std::vector<std::vector<int32_t>> replicas = {};
};

struct Ownership {
  std::vector<int32_t> owner;  // for each item, its rank
  std::vector<int64_t> load;   // for each rank, the cost of its items
  int64_t makespan = 0;        // the largest load
  int64_t lower_bound = 0;     // no assignment has a smaller makespan
};

/// Assigns each item, largest first, to the least loaded rank of its set, and distributes the items
/// that many ranks may own so that smaller sets of ranks can balance theirs. Then improves the
/// assignment by moving an item or swapping two items, as long as this makes the more loaded of the
/// two ranks lighter and a fixed number of trials is not reached. Ties are broken by the order of
/// the items, then by rank. The result depends only on the problem, and not on how its sets are
/// numbered.
Ownership assign_owners(const OwnerProblem& problem);

}  // namespace muonrt
