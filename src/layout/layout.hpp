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

/// Indices [bounds[i], bounds[i + 1]) of a tensor dim on shard i over `mesh_dims`.
struct RowBounds {
  std::vector<int> mesh_dims;
  int tensor_dim = 0;
  std::vector<int64_t> bounds;
  friend bool operator==(const RowBounds&, const RowBounds&) = default;
};

/// The whole tensor on one shard over `mesh_dims`, nothing on the others.
struct Owner {
  std::vector<int> mesh_dims;
  int64_t shard = 0;
  friend bool operator==(const Owner&, const Owner&) = default;
};

/// Elements [first, second) of the row-major local tensor that the cuts leave: one range for each
/// shard over `mesh_dims`, or one for each shard of the shard group.
struct FlatRanges {
  std::vector<int> mesh_dims;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  friend bool operator==(const FlatRanges&, const FlatRanges&) = default;
};

/// Which elements of a tensor every rank holds, and in which order: a global shape, a mesh, and
/// cuts from the outermost in, the last of which may be row bounds, an owner or flat ranges.
/// Immutable; nothing in it grows with the number of elements or of ranks (but the given bounds and
/// ranges). A rank outside the mesh holds nothing; asking about it is no error. Lists are shards in
/// row-major order over mesh dims given in their order; a mesh dim that nothing names replicates.
class Layout {
 public:
  enum class Kind { kCuts, kRowBounds, kOwner, kFlat };

  /// A scalar on rank 0.
  Layout();

  /// All four: errors INVALID_ARGUMENT for a missing mesh, a negative size, more than 2^63 - 1
  /// elements, a mesh or tensor dim out of range, a mesh dim named twice, a split factor or unit
  /// < 1, strided cuts into more than 2^24 pieces.
  /// @param partial_mesh_dims  dims whose ranks hold addends of one tensor.
  static Layout from_cuts(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                          std::vector<Cut> cuts, std::vector<int> partial_mesh_dims = {});

  /// @param bounds  shards + 1 values, ascending from 0 to the size that `cuts_before` leave of
  ///     `tensor_dim`, which must be the same on every rank.
  static Layout with_row_bounds(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                                std::vector<Cut> cuts_before, std::vector<int> mesh_dims,
                                int tensor_dim, std::vector<int64_t> bounds,
                                std::vector<int> partial_mesh_dims = {});

  /// Other shards hold an empty dim 0.
  static Layout with_owner(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                           std::vector<int> mesh_dims, int64_t shard,
                           std::vector<Cut> cuts_before = {},
                           std::vector<int> partial_mesh_dims = {});

  /// @param ranges  one for each shard over `mesh_dims`, tiling the local tensor that `cuts_before`
  ///     leave, in any order of shards, some perhaps empty. Where those local tensors differ in
  ///     size, one for each shard of the shard group.
  static Layout with_flat(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                          std::vector<Cut> cuts_before, std::vector<int> mesh_dims,
                          std::vector<std::pair<int64_t, int64_t>> ranges,
                          std::vector<int> partial_mesh_dims = {});

  /// Cuts and partial dims read from DTensor placements. Errors: as cuts_from_placements,
  /// from_cuts.
  static Layout from_placements(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                                const std::vector<Placement>& placements, Reading reading,
                                const std::vector<int>& flat_dims = {});

  /// The same cuts, where the ranks along `partial_mesh_dims` (none of which cuts) hold addends.
  /// Errors: INVALID_ARGUMENT for a dim that cuts or does not exist.
  Layout with_partial(std::vector<int> partial_mesh_dims) const;

  /// The same tensor with neighbouring dims taken as one: the first `batch_dims` are a stack, the
  /// next `row_dims` the rows of its matrices, the rest their columns. The buffers are the same;
  /// shape, runs and local_shape become 3-D, without a stack 2-D.
  /// Errors: INVALID_ARGUMENT unless rows and columns have a dim each.
  Layout viewed(int batch_dims, int row_dims) const;
  /// All dims but the first taken as one, where there are more than two.
  Layout as_matrix() const;

  const Mesh& mesh() const { return *mesh_; }
  const std::shared_ptr<const Mesh>& shared_mesh() const { return mesh_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int dims() const { return static_cast<int>(shape_.size()); }
  /// The tensor's own, which cuts count by; and which of them a dim of the view begins with.
  const std::vector<int64_t>& tensor_shape() const { return tensor_shape_; }
  int first_dim(int dim) const { return first_[static_cast<size_t>(dim)]; }
  int64_t numel() const { return numel_; }

  Kind kind() const { return static_cast<Kind>(last_.index()); }
  /// False for flat ranges: what a rank holds is then no product of index lists.
  bool product_form() const { return kind() != Kind::kFlat; }
  const std::vector<Cut>& cuts() const { return cuts_; }
  /// Each is valid for its own kind.
  const RowBounds& row_bounds() const { return std::get<RowBounds>(last_); }
  const Owner& owner() const { return std::get<Owner>(last_); }
  const FlatRanges& flat() const { return std::get<FlatRanges>(last_); }
  /// Mesh dims that take part in a cut, ascending; the others, ascending; those of the others that
  /// hold addends, ascending.
  const std::vector<int>& shard_dims() const { return shard_dims_; }
  const std::vector<int>& replica_dims() const { return replica_dims_; }
  const std::vector<int>& partial_dims() const { return partial_dims_; }
  /// Replica dims that hold no addends, ascending.
  std::vector<int> full_replica_dims() const;

  bool holds_mesh_rank(int rank) const { return mesh_->position_of(rank) >= 0; }
  /// Indices of tensor dim `dim` that `rank` holds; empty outside the mesh. The rank owns the
  /// product of its lists. Errors: INVALID_ARGUMENT for flat ranges, or a dim out of range.
  Runs runs(int rank, int dim) const;
  /// The same before flat ranges are taken.
  Runs runs_before_flat(int rank, int dim) const;
  /// Row-major shape of the local buffer: (0, 2048) where dim 0 is empty, {numel} for flat ranges,
  /// all zeros outside the mesh.
  std::vector<int64_t> local_shape(int rank) const;
  int64_t local_numel(int rank) const;
  /// [first, second) of the local tensor before flat ranges are taken; all of it for other kinds,
  /// (0, 0) outside the mesh.
  std::pair<int64_t, int64_t> flat_range(int rank) const;

  /// Where an index of a dim lies: coordinates on the mesh dims that cut it (-1 on the others), and
  /// the position in the list of the ranks there.
  struct Spot {
    std::vector<int64_t> coords;
    int64_t position;
  };
  Spot locate(int dim, int64_t index) const;

  /// Shard = row-major combination of the coordinates on shard_dims, replica = on replica_dims.
  /// A shard group (one replica, all shards) holds the tensor once; the ranks of a replica group
  /// hold equal lists. -1 or empty outside the mesh.
  int64_t shard_count() const;
  int64_t replicas() const;
  int64_t shard_index(int rank) const;
  int64_t replica_index(int rank) const;
  int rank_of(int64_t replica, int64_t shard) const;
  std::vector<int> shard_group(int rank) const;    // in shard order
  std::vector<int> replica_group(int rank) const;  // in replica order
  /// Number of addends, and which one `rank` holds: the combination over partial_dims.
  int64_t partial_count() const;
  int64_t partial_index(int rank) const;
  /// The combination over those of replica_dims that hold no addends: ranks of equal index hold all
  /// addends of a tensor between them.
  int64_t full_replica_index(int rank) const;
  /// Ranks that hold what `rank` holds, and the same addend, by full replica index.
  std::vector<int> equal_holders(int rank) const;
  /// The first of them, -1 outside the mesh; and their number. Take no memory.
  int first_equal_holder(int rank) const;
  int64_t full_replicas() const { return replicas() / partial_count(); }

  /// One line: "S(0) over tp=2, then S(0) over fsdp=4, R over dp=2".
  std::string describe() const;

  /// Digest of the definition (shape, mesh, cuts; mesh dims of size 1 and names left out). Layouts
  /// of equal digest are equal; equal tables may be defined, and then digested, in several ways.
  uint64_t hash() const;

  /// Equal tables: every rank holds the same elements in the same order, and the same addend.
  friend bool operator==(const Layout& a, const Layout& b);

 private:
  using Last = std::variant<std::monostate, RowBounds, Owner, FlatRanges>;

  Layout(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape, std::vector<Cut> cuts,
         Last last, std::vector<int> partial_mesh_dims);
  void check_cuts();
  void check_row_bounds();
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

  std::shared_ptr<const Mesh> mesh_;
  std::vector<int64_t> shape_;         // as viewed
  std::vector<int64_t> tensor_shape_;  // as cut
  std::vector<int> first_;  // tensor dim that each dim of the view begins with, and their number
  int64_t numel_ = 0;
  std::vector<Cut> cuts_;
  Last last_;
  std::vector<int> shard_dims_, replica_dims_, partial_dims_;
};

}  // namespace muonrt
