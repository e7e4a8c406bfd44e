#pragma once

#include <cstdint>
#include <vector>

#include "layout/mesh.hpp"
#include "layout/placement.hpp"

namespace muonrt {

/// Combines the submeshes of all ranks into one mesh. The mesh has the dims of `submesh` and a last
/// dim "submeshes", over which a tensor of the submesh is replicated. If all ranks have the same
/// submesh, returns `submesh`; in this case, a rank may be outside the submesh.
/// @param submesh  Submesh of any rank.
/// @param all      For each rank, the ranks of its submesh.
/// Errors: INVALID_ARGUMENT, with the rank, if a submesh differs in size from `submesh`, overlaps
/// another submesh without being equal to it, or does not contain its own rank.
Mesh lift(const Mesh& submesh, const std::vector<std::vector<int32_t>>& all);

/// How a tensor is distributed over a mesh dim, according to the dim's name.
enum class MeshUse {
  kReplicate,  // dp, ddp, dp_replicate, hsdp_replicate, replicate, cp, sp; any dim of size 1
  kShard,      // fsdp, dp_shard, zero, hsdp_shard, shard, dp_shard_cp, efsdp
  kTensor,     // tp
  kExpert,     // ep
};

/// Returns the use of a mesh dim. In the name, "." and "_" are equivalent.
/// Errors: INVALID_ARGUMENT if the name is pp (pass the mesh of one pipeline stage instead) or is
/// unknown. The message lists the known names and suggests the most similar one.
MeshUse mesh_use(const Mesh& mesh, int dim);

/// Returns the placements that the usual names of mesh dims imply:
///   - kShard cuts tensor dim 0. If a tp or ep dim further right in the mesh also cuts tensor dim
///     0, the placement is strided, as in FSDP2.
///   - kTensor cuts `tp_dim`, or replicates if `tp_dim` is -1.
///   - kExpert cuts dim 0 if `expert` is true, and otherwise replicates.
/// Errors: the same as mesh_use().
std::vector<Placement> placements_from_names(const Mesh& mesh, int tp_dim, bool expert);

/// Returns the placements that trainers use for a tensor with this name; see
/// muonrt_placements_for_tensor(). Errors: the same as mesh_use().
/// @param name    Name of the tensor. If it is empty, tp cuts the columns.
/// @param expert  True if the tensor is a stack of experts along dim 0.
std::vector<Placement> placements_for_tensor(const Mesh& mesh, std::string_view name,
                                             const std::vector<int64_t>& shape, bool expert,
                                             bool transposed);

}  // namespace muonrt
