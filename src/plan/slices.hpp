#pragma once

#include <cstdint>
#include <utility>

#include "plan/plan.hpp"

namespace muonrt {

/// Local elements [first, second) of slice `member` of `members` of a segment, where a rank holds
/// `numel`: the ceil rule for the segment, and again for the slice.
std::pair<int64_t, int64_t> slice_of(int64_t numel, const Segment& segment, int64_t member,
                                     int64_t members);

/// The slice of `owner`, a rank of the parameter's mesh.
std::pair<int64_t, int64_t> slice_at(const Layout& layout, const Segment& segment, int owner);

/// What a slot of slices is for `rank`. Among ranks that hold equal elements each owns a slice: it
/// gathers the addends of it from the ranks of its own replica (of the gradient's layout, where
/// that is another), and gives the new values to all the others. Leaves `out` empty where the rank
/// has no part in it.
void add_slices(const Plan& plan, const ChunkSpec& chunk, int32_t rank, RankChunk& out);

}  // namespace muonrt
