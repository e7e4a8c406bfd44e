#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layout/mesh.hpp"

namespace muonrt {

/// The effect of a mesh dim on a tensor; the values are those of `enum muonrt_placement_kind`.
enum class PlacementKind : int32_t {
  kReplicate = 0,
  kShard = 1,
  kStridedShard = 2,
  kPartial = 3,  // every rank holds a partial gradient; the owner sums them
};

/// The placement on one mesh dim. A negative tensor dim counts from the end. Only kStridedShard
/// uses `split_factor`.
struct Placement {
  PlacementKind kind = PlacementKind::kReplicate;
  int tensor_dim = 0;
  int64_t split_factor = 1;
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// The order in which placements are applied. Results differ for some uneven sizes; see README.md.
enum class Reading : int32_t {
  kLiteral = 0,  // left to right, as in `distribute_tensor`
  kOrdered = 1,  // in the order in which the program cut, as in the buffers of FSDP2
};

/// A cut of a tensor dim by one mesh dim, or by several as one flattened dim (row-major in the
/// given order), in blocks of `unit` indices.
struct Cut {
  std::vector<int> mesh_dims;
  int tensor_dim = 0;
  int64_t split_factor = 1;
  int64_t unit = 1;
  friend bool operator==(const Cut&, const Cut&) = default;
};

/// For each tensor dim the mesh dims that cut it, outermost first, all with split factor 1. JAX has
/// the same form: one tuple of axes per tensor dim, major first.
using ShardOrder = std::vector<std::vector<int>>;

/// Returns the cuts, outermost first, of a tensor with `tensor_dims` dims. Partial dims are not
/// cuts; see `partial_dims`.
/// @param flat_dims  for the ordered reading: the FSDP mesh dims, which cut last, as one flattened
///     dim in the given order. Their split factors are ignored; those of the other dims are used.
///     If empty, the order is decoded from the split factors.
/// Errors: INVALID_ARGUMENT for a wrong number of placements, a tensor dim out of range, a split
/// factor < 1, split factors that encode no order, flat dims that are unknown, named twice, not
/// sharded, on different tensor dims, or given with the literal reading.
std::vector<Cut> cuts_from_placements(const Mesh& mesh, int tensor_dims,
                                      const std::vector<Placement>& placements, Reading reading,
                                      const std::vector<int>& flat_dims = {});

/// Returns the mesh dims with kPartial, ascending.
std::vector<int> partial_dims(const std::vector<Placement>& placements);

/// Returns the order that the split factors encode, or nullopt if they do not encode one.
/// Errors: as cuts_from_placements.
std::optional<ShardOrder> decode_order(const Mesh& mesh, int tensor_dims,
                                       const std::vector<Placement>& placements);

/// Returns cuts with split factor 1 in this order.
/// Errors: INVALID_ARGUMENT for a mesh dim that is out of range or occurs twice.
std::vector<Cut> cuts_from_order(const Mesh& mesh, const ShardOrder& order);

/// Returns `dim` counted from 0. Errors: INVALID_ARGUMENT if it is not in
/// [-tensor_dims, tensor_dims).
int normalized_dim(int dim, int tensor_dims);

/// Returns "S(0)", "SS(0,2)", "R" or "P"; several are joined by commas.
std::string to_text(const Placement& placement);
std::string to_text(const std::vector<Placement>& placements);

}  // namespace muonrt
