#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layout/mesh.hpp"

namespace muonrt {

/// The kinds of placement along one mesh dim. The values equal those of `enum
/// muonrt_placement_kind`.
enum class PlacementKind : int32_t {
  kReplicate = 0,
  kShard = 1,
  kStridedShard = 2,
  kPartial = 3,  // each rank holds a partial gradient; the owner adds these
};

/// The placement of a tensor along one mesh dim. A negative tensor dim counts from the end.
/// `split_factor` is used only by kStridedShard.
struct Placement {
  PlacementKind kind = PlacementKind::kReplicate;
  int tensor_dim = 0;
  int64_t split_factor = 1;
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// The order in which placements are applied. For some uneven sizes, the two orders give different
/// results; see README.md.
enum class Reading : int32_t {
  kLiteral = 0,  // from left to right, as `distribute_tensor` does
  kOrdered = 1,  // in the order in which the program applied them, as in FSDP2
};

/// Cuts a tensor dim over one mesh dim, or over multiple mesh dims as one flattened dim (row-major
/// in the given order). A cut never divides a block of `unit` indices.
struct Cut {
  std::vector<int> mesh_dims;
  int tensor_dim = 0;
  int64_t split_factor = 1;
  int64_t unit = 1;
  friend bool operator==(const Cut&, const Cut&) = default;
};

/// For each tensor dim, the mesh dims that cut it, outermost first. All split factors are 1. JAX
/// uses the same form: one tuple of mesh axes for each tensor dim, major axis first.
using ShardOrder = std::vector<std::vector<int>>;

/// Returns the cuts, outermost first, of a tensor with `tensor_dims` dims. Partial dims do not cut;
/// see partial_dims().
/// @param flat_dims  FSDP mesh dims, only for the ordered reading. They cut last, as one flattened
///     dim in the given order, and must all cut the same tensor dim. Their split factors are
///     ignored. If empty, the order is decoded from the split factors.
/// Errors: INVALID_ARGUMENT if
/// * the number of placements is wrong, or a tensor dim is out of range;
/// * a split factor is < 1, or the split factors encode no order;
/// * flat dims are given with the literal reading;
/// * a flat dim is unknown, named twice or not sharded, or the flat dims cut different tensor dims.
std::vector<Cut> cuts_from_placements(const Mesh& mesh, int tensor_dims,
                                      const std::vector<Placement>& placements, Reading reading,
                                      const std::vector<int>& flat_dims = {});

/// Returns the mesh dims whose placement is kPartial, in ascending order.
std::vector<int> partial_dims(const std::vector<Placement>& placements);

/// Returns the order that the split factors encode, or nullopt if they encode none.
/// Errors: the same as cuts_from_placements().
std::optional<ShardOrder> decode_order(const Mesh& mesh, int tensor_dims,
                                       const std::vector<Placement>& placements);

/// Returns the cuts in the given order, with split factor 1.
/// Errors: INVALID_ARGUMENT if a mesh dim is out of range or occurs twice.
std::vector<Cut> cuts_from_order(const Mesh& mesh, const ShardOrder& order);

/// Converts `dim` to an index from 0: negative values count from the end. Errors: INVALID_ARGUMENT
/// if `dim` is not in [-tensor_dims, tensor_dims).
int normalized_dim(int dim, int tensor_dims);

/// Returns "S(0)", "SS(0,2)", "R" or "P". Several placements are joined with commas.
std::string to_text(const Placement& placement);
std::string to_text(const std::vector<Placement>& placements);

}  // namespace muonrt
