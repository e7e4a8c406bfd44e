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

/// Row bounds: shard i over `mesh_dims` holds the indices [bounds[i], bounds[i + 1]) of a tensor
/// dim.
struct RowBounds {
  std::vector<int> mesh_dims;
  int tensor_dim = 0;
  std::vector<int64_t> bounds;
  friend bool operator==(const RowBounds&, const RowBounds&) = default;
};

/// One shard over `mesh_dims` holds the whole tensor, and the other shards hold nothing.
struct Owner {
  std::vector<int> mesh_dims;
  int64_t shard = 0;
  friend bool operator==(const Owner&, const Owner&) = default;
};

/// Flat ranges: each shard holds the elements [first, second) of the row-major local tensor that
/// remains after the cuts. There is one range for each shard over `mesh_dims`, or for each shard of
/// the shard group.
struct FlatRanges {
  std::vector<int> mesh_dims;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  friend bool operator==(const FlatRanges&, const FlatRanges&) = default;
};

/// Defines which elements of a tensor each rank holds, and in which order. A layout has a global
/// shape, a mesh, and a list of cuts, outermost first. The last cut may be row bounds (RowBounds),
/// one shard for the whole tensor (Owner), or flat ranges (FlatRanges). A tensor is replicated over
/// mesh dims that no cut names. If a cut names multiple mesh dims, its shards are numbered
/// row-major in the order of these dims. A rank outside the mesh holds nothing; all functions
/// accept such ranks.
///
/// A layout is immutable. Copies share their memory, which grows with the number of bounds and
/// ranges, but not with the number of elements or ranks.
class Layout {
 public:
  enum class Kind { kCuts, kRowBounds, kOwner, kFlat };

  /// Creates the layout of a scalar on rank 0.
  Layout();

  /// Errors of this function and of the three functions below: INVALID_ARGUMENT if
  /// * the mesh is null, or a mesh dim or tensor dim is out of range;
  /// * a size is negative, or there are more than 2^63 - 1 elements;
  /// * a mesh dim is named twice;
  /// * a split factor or unit is < 1, or a strided cut creates more than 2^24 groups.
  /// @param partial_mesh_dims  Dims along which the ranks hold partial gradients of one tensor.
  static Layout from_cuts(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                          std::vector<Cut> cuts, std::vector<int> partial_mesh_dims = {});

  /// @param bounds  One value more than there are shards. The values ascend from 0 to the size that
  ///     `tensor_dim` has after `cuts_before`. This size must be equal on every rank.
  static Layout with_row_bounds(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                                std::vector<Cut> cuts_before, std::vector<int> mesh_dims,
                                int tensor_dim, std::vector<int64_t> bounds,
                                std::vector<int> partial_mesh_dims = {});

  /// Creates a layout in which one shard holds the whole tensor that remains after `cuts_before`.
  /// On the other shards, dim 0 is empty.
  static Layout with_owner(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                           std::vector<int> mesh_dims, int64_t shard,
                           std::vector<Cut> cuts_before = {},
                           std::vector<int> partial_mesh_dims = {});

  /// @param ranges  One range for each shard over `mesh_dims`, or for each shard of the shard group
  ///     if the local tensors differ in size. Together, the ranges must cover every element of the
  ///     local tensor after `cuts_before` exactly once. A range may be empty, and the ranges need
  ///     not ascend with the shard.
  static Layout with_flat(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                          std::vector<Cut> cuts_before, std::vector<int> mesh_dims,
                          std::vector<std::pair<int64_t, int64_t>> ranges,
                          std::vector<int> partial_mesh_dims = {});

  /// Creates the layout that DTensor placements describe. Errors: the same as
  /// cuts_from_placements() and from_cuts().
  static Layout from_placements(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                                const std::vector<Placement>& placements, Reading reading,
                                const std::vector<int>& flat_dims = {});

  /// Returns a copy of the layout in which exactly the given mesh dims are partial: the ranks along
  /// them hold partial gradients. Errors: INVALID_ARGUMENT if a dim does not exist or takes part in
  /// a cut.
  Layout with_partial(std::vector<int> partial_mesh_dims) const;

  /// Returns a view of the tensor in which adjacent dims are merged. The first `batch_dims` dims
  /// count the matrices of a stack, the next `row_dims` dims become the rows of these matrices, and
  /// the remaining dims become their columns. The buffers do not change. shape(), runs() and
  /// local_shape() of the view are 3-D, or 2-D if batch_dims is 0.
  /// Errors: INVALID_ARGUMENT if no dim remains for the rows or for the columns.
  Layout viewed(int batch_dims, int row_dims) const;
  /// Returns a view in which all dims except the first are merged. With at most two dims, returns
  /// the layout itself.
  Layout as_matrix() const;

  const Mesh& mesh() const { return *d_->mesh; }
  const std::shared_ptr<const Mesh>& shared_mesh() const { return d_->mesh; }
  const std::vector<int64_t>& shape() const { return d_->shape; }
  int dims() const { return static_cast<int>(d_->shape.size()); }
  /// tensor_shape() returns the shape of the tensor itself. Cuts refer to the dims of this tensor,
  /// even in a view. first_dim() returns the first tensor dim that a dim of the view contains.
  const std::vector<int64_t>& tensor_shape() const { return d_->tensor_shape; }
  int first_dim(int dim) const { return d_->first[static_cast<size_t>(dim)]; }
  int64_t numel() const { return d_->numel; }

  Kind kind() const { return static_cast<Kind>(d_->last.index()); }
  /// Returns true if there are no flat ranges. The elements of a rank are then the product of one
  /// index list for each dim.
  bool product_form() const { return kind() != Kind::kFlat; }
  const std::vector<Cut>& cuts() const { return d_->cuts; }
  /// Each of the following functions may be called only for a layout of its kind.
  const RowBounds& row_bounds() const { return std::get<RowBounds>(d_->last); }
  const Owner& owner() const { return std::get<Owner>(d_->last); }
  const FlatRanges& flat() const { return std::get<FlatRanges>(d_->last); }
  /// shard_dims() returns the mesh dims that take part in a cut, and replica_dims() all other mesh
  /// dims. partial_dims() returns the replica dims that are partial. All lists are in ascending
  /// order.
  const std::vector<int>& shard_dims() const { return d_->shard_dims; }
  const std::vector<int>& replica_dims() const { return d_->replica_dims; }
  const std::vector<int>& partial_dims() const { return d_->partial_dims; }
  /// Returns the replica dims that are not partial, in ascending order.
  std::vector<int> full_replica_dims() const;

  bool holds_mesh_rank(int rank) const { return d_->mesh->position_of(rank) >= 0; }
  /// Returns the indices of `dim` that `rank` holds, or none if the rank is outside the mesh. The
  /// rank holds the product of its lists for all dims. Errors: INVALID_ARGUMENT if there are flat
  /// ranges or `dim` is out of range.
  Runs runs(int rank, int dim) const;
  /// Like runs(), but ignores flat ranges.
  Runs runs_before_flat(int rank, int dim) const;
  /// Returns the row-major shape of the local buffer, for example (0, 2048) if dim 0 is empty. With
  /// flat ranges, the shape is (number of elements). Outside the mesh, all sizes are 0.
  std::vector<int64_t> local_shape(int rank) const;
  int64_t local_numel(int rank) const;
  /// Returns the range [first, second) that the rank holds of the elements of its local tensor
  /// after the cuts. Without flat ranges, this is the whole local tensor. Outside the mesh, it is
  /// (0, 0).
  std::pair<int64_t, int64_t> flat_range(int rank) const;

  /// The location of one index of a dim. It consists of the coordinates on the mesh dims that cut
  /// this dim (-1 for other mesh dims), and the position in the index list of the ranks with these
  /// coordinates.
  struct Spot {
    std::vector<int64_t> coords;
    int64_t position;
  };
  Spot locate(int dim, int64_t index) const;

  /// The shard index of a rank combines its coordinates on shard_dims() in row-major order. The
  /// replica index combines the coordinates on replica_dims() in the same way. A shard group is one
  /// replica: all its shards together hold the tensor once. The ranks of a replica group hold the
  /// same elements. For a rank outside the mesh, the indices are -1 and the groups are empty.
  int64_t shard_count() const;
  int64_t replicas() const;
  int64_t shard_index(int rank) const;
  int64_t replica_index(int rank) const;
  int rank_of(int64_t replica, int64_t shard) const;
  std::vector<int> shard_group(int rank) const;    // in shard order
  std::vector<int> replica_group(int rank) const;  // in replica order
  /// partial_count() returns the number of partial gradients of one tensor. partial_index() returns
  /// the number of the partial gradient that `rank` holds; it combines the coordinates on
  /// partial_dims().
  int64_t partial_count() const;
  int64_t partial_index(int rank) const;
  /// Combines the coordinates of `rank` on full_replica_dims(). The ranks with the same value
  /// together hold all shards and all partial gradients of the tensor.
  int64_t full_replica_index(int rank) const;
  /// Among the ranks that hold the same elements and the same partial gradient as `rank`, returns
  /// the rank whose full replica index is `index`. `rank` must be in the mesh.
  /// @param full  It must be full_replica_dims().
  int equal_holder(int rank, int64_t index, const std::vector<int>& full) const;
  /// first_equal_holder() returns the first rank that holds the same elements and the same partial
  /// gradient as `rank`, and full_replicas() returns the number of such ranks. Outside the mesh,
  /// the first rank is -1. Neither function allocates memory.
  int first_equal_holder(int rank) const;
  int64_t full_replicas() const { return replicas() / partial_count(); }

  /// Returns a description in one line, such as "S(0) over tp=2, then S(0) over fsdp=4, R over
  /// dp=2".
  std::string describe() const;

  /// Returns a hash of the shape, the mesh and the cuts, but not of names and mesh dims of size 1.
  /// If two equal layouts have different definitions, their hashes differ.
  uint64_t hash() const;

  /// Returns true if both layouts were made from the same mesh object, shape and cuts.
  bool has_definition_of(const Layout& other) const { return *d_ == *other.d_; }
  /// Returns true if every rank holds the same elements in the same order, and the same partial
  /// gradient, in both layouts.
  friend bool operator==(const Layout& a, const Layout& b);

 private:
  using Last = std::variant<std::monostate, RowBounds, Owner, FlatRanges>;
  struct Definition {
    std::shared_ptr<const Mesh> mesh;
    std::vector<int64_t> shape;         // shape of the view
    std::vector<int64_t> tensor_shape;  // shape of the tensor itself
    /// The first tensor dim of each dim of the view; the last entry is the number of tensor dims.
    std::vector<int> first;
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
