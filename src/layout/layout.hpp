#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "layout/mesh.hpp"
#include "layout/placement.hpp"
#include "layout/runs.hpp"

namespace muonrt {

/// Shard i over `mesh_dims` holds the indices [bounds[i], bounds[i + 1]) of a tensor dim.
struct RowBounds {
  std::vector<int> mesh_dims;
  int tensor_dim = 0;
  std::vector<int64_t> bounds;
  friend bool operator==(const RowBounds&, const RowBounds&) = default;
};

/// One shard over `mesh_dims` holds the whole tensor, the others hold nothing.
struct Owner {
  std::vector<int> mesh_dims;
  int64_t shard = 0;
  friend bool operator==(const Owner&, const Owner&) = default;
};

/// Each shard holds the elements [first, second) of the row-major local tensor that the cuts leave.
/// There is one range for each shard over `mesh_dims`, or for each shard of the shard group.
struct FlatRanges {
  std::vector<int> mesh_dims;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  friend bool operator==(const FlatRanges&, const FlatRanges&) = default;
};

/// The elements of a tensor that each rank holds, and their order. A layout has a global shape, a
/// mesh and cuts, outermost first; the last cut may be row bounds, an owner or flat ranges. A mesh
/// dim that is not named replicates. Shards over several mesh dims are numbered row-major in the
/// order in which the dims are given. A rank outside the mesh holds nothing, and may be passed to
/// all functions. Immutable, and copies share their memory, which grows with the given bounds and
/// ranges, but not with the number of elements or ranks.
class Layout {
 public:
  enum class Kind { kCuts, kRowBounds, kOwner, kFlat };

  /// A scalar on rank 0.
  Layout();

  /// Errors of this function and of the next three: INVALID_ARGUMENT for a missing mesh, a negative
  /// size, more than 2^63 - 1 elements, a mesh or tensor dim out of range, a mesh dim named twice,
  /// a split factor or unit < 1, strided cuts into more than 2^24 groups.
  /// @param partial_mesh_dims  dims whose ranks hold partial gradients of one tensor.
  static Layout from_cuts(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                          std::vector<Cut> cuts, std::vector<int> partial_mesh_dims = {});

  /// @param bounds  shards + 1 values that ascend from 0 to the size of `tensor_dim` after
  ///     `cuts_before`. This size must be equal on every rank.
  static Layout with_row_bounds(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                                std::vector<Cut> cuts_before, std::vector<int> mesh_dims,
                                int tensor_dim, std::vector<int64_t> bounds,
                                std::vector<int> partial_mesh_dims = {});

  /// On the other shards dim 0 is empty.
  static Layout with_owner(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                           std::vector<int> mesh_dims, int64_t shard,
                           std::vector<Cut> cuts_before = {},
                           std::vector<int> partial_mesh_dims = {});

  /// @param ranges  one for each shard over `mesh_dims`. Together they cover the local tensor after
  ///     `cuts_before` exactly once, in any order of the shards; they may be empty. If the local
  ///     tensors differ in size, pass one for each shard of the shard group.
  static Layout with_flat(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                          std::vector<Cut> cuts_before, std::vector<int> mesh_dims,
                          std::vector<std::pair<int64_t, int64_t>> ranges,
                          std::vector<int> partial_mesh_dims = {});

  /// Takes cuts and partial dims from DTensor placements. Errors: as cuts_from_placements and
  /// from_cuts.
  static Layout from_placements(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                                const std::vector<Placement>& placements, Reading reading,
                                const std::vector<int>& flat_dims = {});

  /// Returns a layout with the same cuts and these partial dims: the ranks along them hold partial
  /// gradients. Errors: INVALID_ARGUMENT for a dim that cuts or does not exist.
  Layout with_partial(std::vector<int> partial_mesh_dims) const;

  /// Returns a view of the tensor in which adjacent dims are merged: the first `batch_dims` are a
  /// stack, the next `row_dims` the rows of its matrices, the others their columns. The buffers are
  /// unchanged; shape, runs and local_shape are 3-D, or 2-D if batch_dims is 0.
  /// Errors: INVALID_ARGUMENT unless rows and columns have at least one dim each.
  Layout viewed(int batch_dims, int row_dims) const;
  /// Merges all dims except the first if there are more than two.
  Layout as_matrix() const;

  const Mesh& mesh() const { return *d_->mesh; }
  const std::shared_ptr<const Mesh>& shared_mesh() const { return d_->mesh; }
  const std::vector<int64_t>& shape() const { return d_->shape; }
  int dims() const { return static_cast<int>(d_->shape.size()); }
  /// The shape of the tensor itself, to which cuts refer, and the first tensor dim of a view's dim.
  const std::vector<int64_t>& tensor_shape() const { return d_->tensor_shape; }
  int first_dim(int dim) const { return d_->first[static_cast<size_t>(dim)]; }
  int64_t numel() const { return d_->numel; }

  Kind kind() const { return static_cast<Kind>(d_->last.index()); }
  /// False for flat ranges, because the elements of a rank are then not a product of index lists.
  bool product_form() const { return kind() != Kind::kFlat; }
  const std::vector<Cut>& cuts() const { return d_->cuts; }
  /// Each requires the matching kind().
  const RowBounds& row_bounds() const { return std::get<RowBounds>(d_->last); }
  const Owner& owner() const { return std::get<Owner>(d_->last); }
  const FlatRanges& flat() const { return std::get<FlatRanges>(d_->last); }
  /// The mesh dims that take part in a cut; the other mesh dims; the partial dims among these. All
  /// ascending.
  const std::vector<int>& shard_dims() const { return d_->shard_dims; }
  const std::vector<int>& replica_dims() const { return d_->replica_dims; }
  const std::vector<int>& partial_dims() const { return d_->partial_dims; }
  /// Returns the replica dims that are not partial, ascending.
  std::vector<int> full_replica_dims() const;

  bool holds_mesh_rank(int rank) const { return d_->mesh->position_of(rank) >= 0; }
  /// Returns the indices of tensor dim `dim` that `rank` holds; empty outside the mesh. The rank
  /// holds the product of its lists. Errors: INVALID_ARGUMENT for flat ranges, or a dim out of
  /// range.
  Runs runs(int rank, int dim) const;
  /// The same, before flat ranges are applied.
  Runs runs_before_flat(int rank, int dim) const;
  /// Returns the row-major shape of the local buffer: such as (0, 2048) if dim 0 is empty, {numel}
  /// for flat ranges, all zeros outside the mesh.
  std::vector<int64_t> local_shape(int rank) const;
  int64_t local_numel(int rank) const;
  /// Returns the elements [first, second) of the local tensor before flat ranges are applied: all
  /// of it for other kinds, (0, 0) outside the mesh.
  std::pair<int64_t, int64_t> flat_range(int rank) const;

  /// The location of an index of a dim: coordinates on the mesh dims that cut it (-1 on the
  /// others), and the position in the index list of the ranks with these coordinates.
  struct Spot {
    std::vector<int64_t> coords;
    int64_t position;
  };
  Spot locate(int dim, int64_t index) const;

  /// The shard index combines the coordinates on shard_dims row-major, the replica index those on
  /// replica_dims. A shard group (one replica, all shards) holds the tensor once; the ranks of a
  /// replica group hold equal lists. Outside the mesh an index is -1 and a group is empty.
  int64_t shard_count() const;
  int64_t replicas() const;
  int64_t shard_index(int rank) const;
  int64_t replica_index(int rank) const;
  int rank_of(int64_t replica, int64_t shard) const;
  std::vector<int> shard_group(int rank) const;    // in shard order
  std::vector<int> replica_group(int rank) const;  // in replica order
  /// The number of partial gradients, and the index of the one that `rank` holds, which combines
  /// the coordinates on partial_dims.
  int64_t partial_count() const;
  int64_t partial_index(int rank) const;
  /// Combines the coordinates on full_replica_dims. The ranks of equal index together hold all
  /// partial gradients of a tensor.
  int64_t full_replica_index(int rank) const;
  /// Returns the rank of this full replica index that holds the same elements and the same partial
  /// gradient as `rank`, which must be in the mesh.
  /// @param full  full_replica_dims().
  int equal_holder(int rank, int64_t index, const std::vector<int>& full) const;
  /// The first equal holder, or -1 outside the mesh, and their number. Both work without memory.
  int first_equal_holder(int rank) const;
  int64_t full_replicas() const { return replicas() / partial_count(); }

  /// Returns one line, such as "S(0) over tp=2, then S(0) over fsdp=4, R over dp=2".
  std::string describe() const;

  /// Hash of the definition: shape, mesh and cuts, without mesh dims of size 1 and without names.
  /// Equal layouts can have different definitions and therefore different hashes.
  uint64_t hash() const;

  /// True if both were made from the same mesh object, shape and cuts.
  bool has_definition_of(const Layout& other) const { return *d_ == *other.d_; }
  /// True if every rank holds the same elements in the same order, and the same partial gradient.
  friend bool operator==(const Layout& a, const Layout& b);

 private:
  using Last = std::variant<std::monostate, RowBounds, Owner, FlatRanges>;
  struct Definition {
    std::shared_ptr<const Mesh> mesh;
    std::vector<int64_t> shape;         // of the view
    std::vector<int64_t> tensor_shape;  // of the tensor
    std::vector<int> first;  // first tensor dim of each dim of the view; at the end dims of tensor
    int64_t numel = 0;
    std::vector<Cut> cuts;
    Last last;
    std::vector<int> shard_dims, replica_dims, partial_dims;
    friend bool operator==(const Definition&, const Definition&) = default;
  };

  Layout(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape, std::vector<Cut> cuts,
         Last last, std::vector<int> partial_mesh_dims);
  explicit Layout(std::shared_ptr<const Definition> definition) : d_(std::move(definition)) {}
  void check_cuts(Definition& definition) const;
  void check_row_bounds(Definition& definition) const;
  void check_flat() const;
  void take_mesh_dims(const std::vector<int>& dims, const char* what,
                      std::vector<bool>& used) const;
  Layout with_dims(std::vector<int> first) const;
  int64_t locate_in(int tensor_dim, Spot& spot) const;
  bool owned_at(int64_t position) const;
  std::pair<int64_t, int64_t> flat_range_at(int64_t position) const;
  Runs tensor_runs(int64_t position, int dim) const;
  Runs runs_at(int64_t position, int dim) const;
  int64_t list_length(int64_t position, int dim) const;
  int64_t list_length_after_cuts(int64_t position, int dim) const;
  int64_t numel_before_flat(int64_t position) const;
  std::vector<int> dims_of_cuts() const;

  std::shared_ptr<const Definition> d_;
};

}  // namespace muonrt
