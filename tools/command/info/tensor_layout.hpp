#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "command/plan/models.hpp"
#include "muonrt/layout.h"

namespace muonrt::tool {

/// A layout for tensors of any shape over a mesh, as texts that `muonrt layout` reads.
struct LayoutWords {
  std::string name;  // "FSDP2 x TP"
  std::string mesh, rank_array;
  std::string placements;  // of matrices; dimensions that a tensor lacks are replicated
  std::string stack;       // of stacks; "": as matrices
  std::string reading, flat_dims;
  std::string cuts;  // instead of placements
  /// "row-bounds", "owner" or "flat" over the mesh dimensions that no cut names, with uneven
  /// numbers that differ between tensors; or "".
  std::string last;
};

/// The layout of one tensor as texts for `muonrt layout`; "" for each option that is not used.
struct ExactWords {
  std::vector<int64_t> shape;
  std::string mesh, placements, reading, cuts, row_bounds, owner, flat;
};

/// `count` elements of the tensor that are contiguous in the tensor and in the buffer of a rank.
struct Stretch {
  int64_t element, local, count;
};

/// The number of ranks of a mesh given as text. Throws if the text cannot be parsed.
int64_t mesh_ranks(const std::string& mesh);
/// Throws if the mesh, given as text, has a name that muonrt/strategies.h does not have.
void check_mesh_names(const std::string& mesh);

/// The layout of one tensor: the struct of the C ABI, and the elements that every rank holds.
class TensorLayout {
 public:
  /// Throws if the texts cannot be parsed or do not fit the tensor.
  /// @param index  the index of the tensor; the numbers of `last` depend on it.
  TensorLayout(const LayoutWords& words, const ModelTensor& tensor, size_t index);
  /// Throws if the texts cannot be parsed or do not fit the shape.
  explicit TensorLayout(const ExactWords& words);
  ~TensorLayout();
  TensorLayout(TensorLayout&&) noexcept;

  /// The struct of the C ABI, valid as long as this object.
  const muonrt_layout_t* c() const;
  std::vector<Stretch> stretches(int rank) const;
  /// Whether the gradient is a sum of partial gradients over mesh dimensions.
  bool partial() const;
  /// The number of partial gradients; 1 if the gradient is not a sum.
  int64_t partial_grads() const;
  /// The index of the partial gradient that `rank` holds.
  int64_t partial_grad(int rank) const;
  /// A description in one line.
  std::string describe() const;

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace muonrt::tool
