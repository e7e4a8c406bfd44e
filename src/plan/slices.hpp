#pragma once

#include <cstdint>
#include <utility>

#include "plan/plan.hpp"

namespace muonrt {

/// Returns the range [first, second) of local elements in one slice of a segment. The rank's
/// `numel` elements are divided into segments, and each segment into `members` slices. All sizes
/// are rounded up, so the last segments and slices may be shorter or empty.
std::pair<int64_t, int64_t> slice_of(int64_t numel, const Segment& segment, int64_t member,
                                     int64_t members);

/// Returns the range of the slice that `owner` owns. `owner` must be a rank of the parameter's
/// mesh.
std::pair<int64_t, int64_t> slice_at(const Layout& layout, const Segment& segment, int owner);

/// Fills `out` for a chunk of slices. Each of the ranks that hold equal elements owns a slice. It
/// gathers the partial gradients of the slice from the ranks in its replica, and returns the new
/// values to the other ranks. If the gradient has a separate layout, "replica" refers to that
/// layout. If `rank` does not take part, `out` remains empty.
void add_slices(const Plan& plan, const ChunkSpec& chunk, int32_t rank, RankChunk& out);

}  // namespace muonrt
