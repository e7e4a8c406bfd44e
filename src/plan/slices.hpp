#pragma once

#include <cstdint>
#include <utility>

#include "plan/plan.hpp"

namespace muonrt {

/// Local elements [first, second) of slice `member` of `members` of a segment, where a rank holds
/// `numel`: the ceil rule for the segment, and again for the slice.
std::pair<int64_t, int64_t> slice_of(int64_t numel, const Segment& segment, int64_t member,
                                     int64_t members);

/// What a slot of slices is for `rank`. Among ranks that hold equal elements each owns a slice: it
/// gathers the addends of it from the ranks of its own replica, and gives the new values to all the
/// others. Leaves `out` empty where the rank has no part in it.
void add_slices(const Plan& plan, const Slot& slot, int32_t rank, SlotPlan& out);

}  // namespace muonrt
