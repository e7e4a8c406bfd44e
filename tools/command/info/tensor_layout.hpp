#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "command/plan/models.hpp"
#include "muonrt/layout.h"

namespace muonrt::tool {

/// A layout for tensors of any shape over a mesh, in the form of texts that `muonrt layout` reads.
struct LayoutWords {
  std::string name;  // "FSDP2 x TP"
  std::string mesh, rank_array;
  std::string placements;  // for matrices; dimensions that a tensor lacks are replicated
  std::string stack;       // for stacks; "": as for matrices
  std::string reading, flat_dims;
  std::string cuts;  // used instead of placements
  /// The kind of uneven shards over the mesh dimensions that no cut names: "row-bounds", "owner" or
  /// "flat". Their sizes differ between tensors. "" if there are none.
  std::string last;
};

/// The layout of one tensor as texts for `muonrt layout`. An option that is not used is "".
struct ExactWords {
  std::vector<int64_t> shape;
  std::string mesh, placements, reading, cuts, row_bounds, owner, flat;
};

/// A run of `count` elements that are contiguous in the tensor and in the buffer of a rank.
struct Stretch {
  int64_t element, local, count;
};

/// Returns the number of ranks of a mesh that is given as text. Throws if the text cannot be
/// parsed.
int64_t mesh_ranks(const std::string& mesh);
/// Throws if the mesh, given as text, uses a dimension name that muonrt/strategies.h does not
/// define.
void check_mesh_names(const std::string& mesh);

/// The layout of one tensor: the struct of the C ABI, and the elements that each rank holds.
class TensorLayout {
 public:
  /// Throws if the texts cannot be parsed or do not fit the tensor.
  /// @param index  the index of the tensor, which determines the sizes of the shards of `last`.
  TensorLayout(const LayoutWords& words, const ModelTensor& tensor, size_t index);
  /// Throws if the texts cannot be parsed or do not fit the shape.
  explicit TensorLayout(const ExactWords& words);
  ~TensorLayout();
  TensorLayout(TensorLayout&&) noexcept;

  /// Returns the struct of the C ABI, which is valid as long as this object.
  const muonrt_layout_t* c() const;
  std::vector<Stretch> stretches(int rank) const;
  /// Returns whether the gradient is a sum of partial gradients over mesh dimensions.
  bool partial() const;
  /// Returns the number of partial gradients, or 1 if the gradient is not a sum.
  int64_t partial_grads() const;
  /// Returns the index of the partial gradient that `rank` holds.
  int64_t partial_grad(int rank) const;
  /// Returns a description in one line.
  std::string describe() const;

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace muonrt::tool
