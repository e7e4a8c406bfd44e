#pragma once

#include <cstdint>
#include <vector>

#include "layout/mesh.hpp"
#include "layout/placement.hpp"

namespace muonrt {

/// Returns the mesh of all ranks that consists of the submeshes of all ranks. It has the dims of
/// `submesh` and then a dim "submeshes", over which a tensor of the submesh is replicated. If all
/// ranks have the same submesh, returns that submesh.
/// @param submesh  the submesh of any rank.
/// @param all      for each rank, the ranks of its submesh.
/// Errors: INVALID_ARGUMENT with the rank, unless all submeshes have the size of `submesh`, are
/// equal or disjoint, and contain their rank. If all are the same, a rank may be outside.
Mesh lift(const Mesh& submesh, const std::vector<std::vector<int32_t>>& all);

/// The use that the name of a mesh dim states.
enum class MeshUse {
  kReplicate,  // dp, ddp, dp_replicate, hsdp_replicate, replicate, cp, sp; any dim of size 1
  kShard,      // fsdp, dp_shard, zero, hsdp_shard, shard, dp_shard_cp, efsdp
  kTensor,     // tp
  kExpert,     // ep
};

/// Returns the use of a mesh dim. In its name "." and "_" are equal.
/// Errors: INVALID_ARGUMENT for pp (pass the mesh of one stage) and any other name, with the known
/// names and the nearest of them.
MeshUse mesh_use(const Mesh& mesh, int dim);

/// Returns the placements that the usual names of mesh dims mean:
///   - kShard cuts tensor dim 0. If tp or ep, to the right in the mesh, cuts tensor dim 0, too, the
///     placement is strided, as FSDP2 records it;
///   - kTensor cuts `tp_dim`, or replicates if `tp_dim` is -1;
///   - kExpert cuts dim 0 if `expert`, otherwise replicates.
/// Errors: as mesh_use().
std::vector<Placement> placements_from_names(const Mesh& mesh, int tp_dim, bool expert);

/// Returns the placements that trainers give a tensor with this name; see
/// muonrt_placements_for_tensor(). Errors: as mesh_use().
/// @param name    "": tp cuts the columns.
/// @param expert  the tensor is a stack of experts, in dim 0.
std::vector<Placement> placements_for_tensor(const Mesh& mesh, std::string_view name,
                                             const std::vector<int64_t>& shape, bool expert,
                                             bool transposed);

}  // namespace muonrt
