#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "layout/mesh.hpp"
#include "layout/placement.hpp"

namespace muonrt {

// From how people have their parallelism to meshes and placements.

/// Ranks 0, 1, 2, ... as a mesh of the given sizes, outermost first; dims of size 1 are left out.
/// Errors: INVALID_ARGUMENT unless the sizes are >= 1 and multiply to `world`.
Mesh mesh_from_sizes(const std::vector<std::pair<std::string, int64_t>>& sizes, int64_t world);

/// One rank's process groups: for each dim the ranks of the group that it is in, in the group's
/// order; empty where it has none.
using GroupRanks = std::vector<std::vector<int32_t>>;

/// The mesh of which the groups are the lines: a rank's coordinate on a dim is its place in its
/// group. @param all  of every rank of the world.
/// Errors: INVALID_ARGUMENT, naming rank and group, where members of a group do not agree on it, or
/// the groups do not join all ranks into one array: some group is missing (pipeline stages without
/// pp), or two overlap (experts' groups cut out of fsdp: give those a mesh of their own).
Mesh mesh_from_groups(const std::vector<std::string>& names, const std::vector<GroupRanks>& all);

/// The part of a mesh with coordinate `index` on `dim`, without that dim: what holds the parameters
/// of one pipeline stage. Errors: INVALID_ARGUMENT for an index out of range.
Mesh select(const Mesh& mesh, int dim, int64_t index);

/// The mesh of all ranks of which every rank knows a line, its own submesh: that submesh, and
/// behind its dims one named "lines", over which a tensor of the submesh is replicated. Where all
/// ranks have the same line, that mesh.
/// @param submesh  of any rank.  @param all  the ranks of every rank's, by rank.
/// Errors: INVALID_ARGUMENT, naming the rank, unless every submesh has that size, holds its rank
/// (but where all are the same), and they are equal or disjoint.
Mesh lift(const Mesh& submesh, const std::vector<std::vector<int32_t>>& all);

/// Placements by the customary names of mesh dims, "." and "_" being alike: fsdp, dp_shard, zero,
/// hsdp_shard, dp_shard_cp and efsdp cut tensor dim 0, strided by what tp and ep right of them cut
/// of it before, as FSDP2 records it; tp cuts `tp_dim`, or replicates where that is -1; ep cuts dim
/// 0 of experts and replicates all else; dp, ddp, dp_replicate, hsdp_replicate, cp and sp
/// replicate. Errors: INVALID_ARGUMENT for pp (select a stage first) and any other name.
std::vector<Placement> placements_by_name(const Mesh& mesh, int tp_dim, bool expert);

/// What a DTensor prints of its placements, or `muonrt layout` reads: "(Shard(dim=0),
/// Replicate())",
/// "[_StridedShard(dim=0, sf=2), Partial(sum)]", "S(0),R". Errors: INVALID_ARGUMENT, naming the
/// piece (a Partial other than a sum, too).
std::vector<Placement> parse_dtensor_placements(std::string_view text);

}  // namespace muonrt
