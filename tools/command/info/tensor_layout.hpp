#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "command/plan/models.hpp"
#include "muonrt/layout.h"

namespace muonrt::tool {

/// A layout for tensors of any shape over a mesh, given as texts that `muonrt layout` accepts.
struct LayoutWords {
  std::string name;  // such as "FSDP2 x TP"
  std::string mesh, rank_array;
  std::string placements;  // for matrices; if a tensor lacks a sharded dimension, R instead
  std::string stack;       // for stacks; empty: as for matrices
  std::string reading, flat_dims;
  std::string cuts;  // used instead of placements
  /// The kind of uneven shards over the mesh dimensions without a cut: "row-bounds", "owner" or
  /// "flat". The sizes of these shards differ between tensors. Empty if no shards are uneven.
  std::string last;
};

/// The layout of one tensor as texts for the options of `muonrt layout`. Unused options are empty.
struct ExactWords {
  std::vector<int64_t> shape;
  std::string mesh, placements, reading, cuts, row_bounds, owner, flat;
};

/// A run of `count` elements that are contiguous both in the tensor and in the buffer of a rank.
struct Stretch {
  int64_t element, local, count;
};

/// Returns the number of ranks of a mesh that is given as text. Throws if the text cannot be
/// parsed.
int64_t mesh_ranks(const std::string& mesh);
/// Throws unless muonrt/strategies.h defines the names of all dimensions of `mesh`.
void check_mesh_names(const std::string& mesh);

/// The layout of one tensor: the struct of the C ABI, and the elements that each rank holds.
class TensorLayout {
 public:
  /// Throws if the texts cannot be parsed, or do not fit the tensor.
  /// @param index  the index of the tensor, which determines the sizes of the shards of `last`.
  TensorLayout(const LayoutWords& words, const ModelTensor& tensor, size_t index);
  /// Throws if the texts cannot be parsed, or do not fit the shape.
  explicit TensorLayout(const ExactWords& words);
  ~TensorLayout();
  TensorLayout(TensorLayout&&) noexcept;

  /// Returns the struct of the C ABI, which is valid while this object exists.
  const muonrt_layout_t* c() const;
  std::vector<Stretch> stretches(int rank) const;
  /// Returns whether the gradient is a sum of partial gradients over mesh dimensions.
  bool partial() const;
  /// Returns the number of partial gradients, or 1 if the gradient is not a sum.
  int64_t partial_grads() const;
  /// Returns the index of the partial gradient that `rank` holds.
  int64_t partial_grad(int rank) const;
  /// Returns a description on one line.
  std::string describe() const;

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace muonrt::tool
