#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layout/mesh.hpp"

namespace muonrt {

/// What one mesh dim does to a tensor; the values are those of `muonrt_placement_kind_t`.
enum class PlacementKind : int32_t {
  kReplicate = 0,
  kShard = 1,
  kStridedShard = 2,
  kPartial = 3,  // every rank holds an addend of the whole; the addends are summed
};

/// One per mesh dim. A negative tensor dim counts from the end; `split_factor` is read for
/// kStridedShard alone.
struct Placement {
  PlacementKind kind = PlacementKind::kReplicate;
  int tensor_dim = 0;
  int64_t split_factor = 1;
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// How placements become buffers. The two part for some uneven sizes; see README.md.
enum class Reading : int32_t {
  kLiteral = 0,  // left to right, as `distribute_tensor` cuts
  kOrdered = 1,  // in the order in which the cuts were applied, as FSDP2 leaves its buffers
};

/// One cut of a tensor dim by one mesh dim, or by several as one flattened dim (row-major in the
/// order given), in blocks of `unit` indices.
struct Cut {
  std::vector<int> mesh_dims;
  int tensor_dim = 0;
  int64_t split_factor = 1;
  int64_t unit = 1;
  friend bool operator==(const Cut&, const Cut&) = default;
};

/// Mesh dims that cut a tensor dim, outermost first, for each tensor dim; all plain chunks. Also
/// the JAX form: one tuple of axes per tensor dim, major first.
using ShardOrder = std::vector<std::vector<int>>;

/// Cuts, outermost first, of a tensor with `tensor_dims` dims. Partial dims give no cut
/// (`partial_dims`).
/// @param flat_dims  ordered reading only: the FSDP mesh dims, cut last as one flattened dim in the
///     order given; their own split factors are dropped, those of the model dims kept. Empty: the
///     order is decoded from the split factors.
/// Errors: INVALID_ARGUMENT for a wrong number of placements, a tensor dim out of range, a split
/// factor < 1, split factors that encode no order, flat dims that are unknown, named twice, not
/// sharded, on different tensor dims, or given with the literal reading.
std::vector<Cut> cuts_from_placements(const Mesh& mesh, int tensor_dims,
                                      const std::vector<Placement>& placements, Reading reading,
                                      const std::vector<int>& flat_dims = {});

/// Mesh dims with kPartial, ascending.
std::vector<int> partial_dims(const std::vector<Placement>& placements);

/// The order that the split factors encode; nullopt if they encode none.
/// Errors: as cuts_from_placements.
std::optional<ShardOrder> decode_order(const Mesh& mesh, int tensor_dims,
                                       const std::vector<Placement>& placements);

/// Plain cuts in that order.
/// Errors: INVALID_ARGUMENT for a mesh dim that is out of range or occurs twice.
std::vector<Cut> cuts_from_order(const Mesh& mesh, const ShardOrder& order);

/// `dim` counted from 0. Errors: INVALID_ARGUMENT if it is not in [-tensor_dims, tensor_dims).
int normalized_dim(int dim, int tensor_dims);

/// "S(0)", "SS(0,2)", "R", "P"; joined by commas.
std::string to_text(const Placement& placement);
std::string to_text(const std::vector<Placement>& placements);

}  // namespace muonrt
