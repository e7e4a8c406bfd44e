#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/owners/owner_classes.hpp"

namespace muonrt {

/// The smallest mean load that each set of ranks can have in the end. The mean includes the items
/// that only ranks of the set may own, and all items that these ranks already own. An item that
/// many ranks may own should be assigned to a set with a low mean, even if all ranks have equal
/// loads so far.
///
/// Example: ranks 0 to 7 and 8 to 15 are two nodes, and each node has experts that only its ranks
/// may own. Eight large matrices may be on any rank. Without the means, all eight could be assigned
/// to ranks 0 to 7, and the experts could no longer balance the two nodes.
class SetLevels {
 public:
  SetLevels(const OwnerProblem& problem, const OwnerClasses& classes);

  /// Returns true if this set contains smaller sets of ranks to which other items are restricted.
  bool divided(int32_t set) const { return divided_[static_cast<size_t>(set)]; }
  bool any_divided() const {
    return std::find(divided_.begin(), divided_.end(), true) != divided_.end();
  }
  /// Returns the largest mean among the subsets of `set` that contain the rank, or 0 if there are
  /// none.
  int64_t level(int32_t set, int32_t rank) const;
  /// Records that an item of set `set` has been assigned to this rank.
  void place(int32_t set, int32_t rank, int64_t cost);

 private:
  bool is_part(int32_t part, int32_t set) const;

  std::vector<int64_t> sizes_, loads_;         // indexed by set
  std::vector<bool> divided_;                  // indexed by set
  std::vector<std::vector<int32_t>> outer_;    // for each set, the sets that contain it, ascending
  std::vector<std::vector<int32_t>> sets_of_;  // for each rank, the sets that contain it, ascending
};

}  // namespace muonrt
