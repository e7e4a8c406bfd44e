#pragma once

#include <cstdint>
#include <utility>

#include "plan/plan.hpp"

namespace muonrt {

/// Returns the local elements [first, second) of slice `member` of `members` of a segment. The ceil
/// rule gives the segment of the rank's `numel` elements, and then the slice of the segment.
std::pair<int64_t, int64_t> slice_of(int64_t numel, const Segment& segment, int64_t member,
                                     int64_t members);

/// Returns the slice of `owner`, a rank of the parameter's mesh.
std::pair<int64_t, int64_t> slice_at(const Layout& layout, const Segment& segment, int owner);

/// Fills the rank chunk of `rank` for a chunk of slices. Each of the ranks that hold equal elements
/// owns a slice. It gathers the partial gradients of the slice from the ranks of its own replica
/// (of the gradient's layout, if that is separate) and returns the new values to the others. Leaves
/// `out` empty if the rank does not take part.
void add_slices(const Plan& plan, const ChunkSpec& chunk, int32_t rank, RankChunk& out);

}  // namespace muonrt
