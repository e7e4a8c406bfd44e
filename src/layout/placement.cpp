#include "layout/placement.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace muonrt {

namespace {

bool shards(const Placement& p) {
  return p.kind == PlacementKind::kShard || p.kind == PlacementKind::kStridedShard;
}

int64_t factor_of(const Placement& p) {
  return p.kind == PlacementKind::kStridedShard ? p.split_factor : 1;
}

/// Checks every field. Returns the placements with all tensor dims converted to indices from 0.
std::vector<Placement> normalized(const Mesh& mesh, int tensor_dims,
                                  const std::vector<Placement>& placements) {
  MUONRT_REQUIRE(std::ssize(placements) == mesh.dims(), Status::kInvalidArgument,
                 "placements: the number of placements is ", placements.size(), ", but the mesh ",
                 mesh.describe(), " has ", mesh.dims(),
                 " dims; give one for each, R for a dim that replicates");
  std::vector<Placement> out = placements;
  for (size_t k = 0; k < out.size(); ++k) {
    const auto kind = static_cast<int32_t>(out[k].kind);
    MUONRT_REQUIRE(kind >= 0 && kind <= 3, Status::kInvalidArgument, "placements: mesh dim '",
                   mesh.names()[k], "' has the unknown kind ", kind,
                   "; use 0 (replicate), 1 (shard), 2 (strided shard) or 3 (partial)");
    if (!shards(out[k])) continue;
    out[k].tensor_dim = normalized_dim(out[k].tensor_dim, tensor_dims);
    MUONRT_REQUIRE(factor_of(out[k]) >= 1, Status::kInvalidArgument, "placements: mesh dim '",
                   mesh.names()[k], "' has split factor ", out[k].split_factor,
                   ", but must be at least 1; use a shard instead of 1");
  }
  return out;
}

void check_mesh_dims(const Mesh& mesh, const std::vector<int>& dims, std::vector<bool>& used) {
  used.resize(static_cast<size_t>(mesh.dims()));
  for (const int k : dims) {
    MUONRT_REQUIRE(k >= 0 && k < mesh.dims(), Status::kInvalidArgument, "mesh dim ", k,
                   " does not exist in the mesh ", mesh.describe(), "; give 0 to ",
                   mesh.dims() - 1);
    MUONRT_REQUIRE(!used[static_cast<size_t>(k)], Status::kInvalidArgument, "mesh dim '",
                   mesh.names()[static_cast<size_t>(k)], "' is named twice; name it once");
    used[static_cast<size_t>(k)] = true;
  }
}

std::vector<Cut> literal_cuts(const std::vector<Placement>& placements,
                              const std::vector<int>& except) {
  std::vector<Cut> out;
  for (size_t k = 0; k < placements.size(); ++k) {
    const int dim = static_cast<int>(k);
    if (!shards(placements[k])) continue;
    if (std::find(except.begin(), except.end(), dim) != except.end()) continue;
    out.push_back({{dim}, placements[k].tensor_dim, factor_of(placements[k]), 1});
  }
  return out;
}

std::vector<Cut> flattened_cuts(const Mesh& mesh, const std::vector<Placement>& placements,
                                const std::vector<int>& flat_dims) {
  std::vector<bool> used;
  check_mesh_dims(mesh, flat_dims, used);
  const Placement& first = placements[static_cast<size_t>(flat_dims[0])];
  for (const int k : flat_dims) {
    const Placement& p = placements[static_cast<size_t>(k)];
    MUONRT_REQUIRE(shards(p), Status::kInvalidArgument, "mesh dim '",
                   mesh.names()[static_cast<size_t>(k)],
                   "' is named as an FSDP mesh dim, but its placement is ", to_text(p),
                   "; name only sharding dims, without the replicate dim of HSDP");
    MUONRT_REQUIRE(p.tensor_dim == first.tensor_dim, Status::kInvalidArgument,
                   "the FSDP mesh dims cut tensor dims ", first.tensor_dim, " and ", p.tensor_dim,
                   ", but a flattened cut acts on one; write the cuts");
  }
  std::vector<Cut> out = literal_cuts(placements, flat_dims);
  out.push_back({flat_dims, first.tensor_dim, 1, 1});
  return out;
}

/// Inserts mesh dim k at the position where the product of the sizes of the mesh dims before it
/// equals `factor`. Returns false if there is no such position.
bool insert_by_factor(const Mesh& mesh, int k, int64_t factor, std::vector<int>& order) {
  int64_t product = 1;
  for (size_t i = 0;; ++i) {
    if (product == factor) {
      order.insert(order.begin() + static_cast<ptrdiff_t>(i), k);
      return true;
    }
    if (i == order.size()) break;
    product *= mesh.shape()[static_cast<size_t>(order[i])];
  }
  if (mesh.shape()[static_cast<size_t>(k)] != 1) return false;
  order.push_back(k);  // A mesh dim of size 1 does not cut, so its position does not matter.
  return true;
}

}  // namespace

int normalized_dim(int dim, int tensor_dims) {
  MUONRT_REQUIRE(dim >= -tensor_dims && dim < tensor_dims, Status::kInvalidArgument, "tensor dim ",
                 dim, " does not exist in a tensor of ", tensor_dims,
                 tensor_dims == 0 ? " dims; a scalar can only be replicated"
                                  : " dims; count from 0, or from -1 at the end");
  return dim < 0 ? dim + tensor_dims : dim;
}

std::vector<Cut> cuts_from_placements(const Mesh& mesh, int tensor_dims,
                                      const std::vector<Placement>& placements, Reading reading,
                                      const std::vector<int>& flat_dims) {
  const std::vector<Placement> all = normalized(mesh, tensor_dims, placements);
  if (reading == Reading::kLiteral) {
    MUONRT_REQUIRE(
        flat_dims.empty(), Status::kInvalidArgument,
        "FSDP mesh dims are named, but the literal reading cuts only in mesh order; use the "
        "ordered reading or name none");
    return literal_cuts(all, {});
  }
  MUONRT_REQUIRE(reading == Reading::kOrdered, Status::kInvalidArgument, "reading ",
                 static_cast<int32_t>(reading), " is unknown; use 0 (literal) or 1 (ordered)");
  if (!flat_dims.empty()) return flattened_cuts(mesh, all, flat_dims);
  const std::optional<ShardOrder> order = decode_order(mesh, tensor_dims, all);
  MUONRT_REQUIRE(
      order.has_value(), Status::kInvalidArgument, "placements ", to_text(all), " on the mesh ",
      mesh.describe(),
      " encode no shard order, because a split factor is not the product of the sizes that "
      "cut before it; name the FSDP mesh dims, use the literal reading, or write the cuts");
  return cuts_from_order(mesh, *order);
}

std::vector<int> partial_dims(const std::vector<Placement>& placements) {
  std::vector<int> out;
  for (size_t k = 0; k < placements.size(); ++k) {
    if (placements[k].kind == PlacementKind::kPartial) out.push_back(static_cast<int>(k));
  }
  return out;
}

std::optional<ShardOrder> decode_order(const Mesh& mesh, int tensor_dims,
                                       const std::vector<Placement>& placements) {
  const std::vector<Placement> all = normalized(mesh, tensor_dims, placements);
  ShardOrder out(static_cast<size_t>(tensor_dims));
  for (int k = mesh.dims() - 1; k >= 0; --k) {
    const Placement& p = all[static_cast<size_t>(k)];
    if (!shards(p)) continue;
    std::vector<int>& order = out[static_cast<size_t>(p.tensor_dim)];
    if (!insert_by_factor(mesh, k, factor_of(p), order)) return std::nullopt;
  }
  return out;
}

std::vector<Cut> cuts_from_order(const Mesh& mesh, const ShardOrder& order) {
  std::vector<bool> used;
  std::vector<Cut> out;
  for (size_t d = 0; d < order.size(); ++d) {
    check_mesh_dims(mesh, order[d], used);
    for (const int k : order[d]) out.push_back({{k}, static_cast<int>(d), 1, 1});
  }
  return out;
}

std::string to_text(const Placement& placement) {
  switch (placement.kind) {
    case PlacementKind::kReplicate:
      return "R";
    case PlacementKind::kShard:
      return cat("S(", placement.tensor_dim, ")");
    case PlacementKind::kStridedShard:
      return cat("SS(", placement.tensor_dim, ",", placement.split_factor, ")");
    case PlacementKind::kPartial:
      return "P";
  }
  return "?";
}

std::string to_text(const std::vector<Placement>& placements) {
  std::string out;
  for (const Placement& p : placements) out += cat(out.empty() ? "" : ",", to_text(p));
  return out;
}

}  // namespace muonrt
