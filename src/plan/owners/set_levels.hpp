#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/owners/owner_classes.hpp"

namespace muonrt {

/// The mean load that each set of ranks will have at least: the items that only its ranks may own,
/// and the other items that its ranks own already. An item that many ranks may own should go to a
/// set with a low mean, although all ranks may be equally loaded when it is assigned.
///
/// Example: ranks 0 to 7 and 8 to 15 are two nodes, and each node has experts that only its ranks
/// may own. Eight large matrices may be on any rank. Without the means all eight would be on ranks
/// 0 to 7, and the experts could not balance the two nodes any more.
class SetLevels {
 public:
  SetLevels(const OwnerProblem& problem, const OwnerClasses& classes);

  /// Returns true if the items of other sets may only be on a part of this set's ranks.
  bool divided(int32_t set) const { return divided_[static_cast<size_t>(set)]; }
  bool any_divided() const {
    return std::find(divided_.begin(), divided_.end(), true) != divided_.end();
  }
  /// Returns the largest mean of the sets that contain the rank and are a part of `set`, or 0.
  int64_t level(int32_t set, int32_t rank) const;
  /// An item that the ranks of `set` may own is now on this rank.
  void place(int32_t set, int32_t rank, int64_t cost);

 private:
  bool is_part(int32_t part, int32_t set) const;

  std::vector<int64_t> sizes_, loads_;         // by set
  std::vector<bool> divided_;                  // by set
  std::vector<std::vector<int32_t>> outer_;    // by set: the other sets that contain it, ascending
  std::vector<std::vector<int32_t>> sets_of_;  // by rank: the sets that contain it, ascending
};

}  // namespace muonrt
