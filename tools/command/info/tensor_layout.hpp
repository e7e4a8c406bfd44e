#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "command/plan/models.hpp"
#include "muonrt/layout.h"

namespace muonrt::tool {

/// A way to lay tensors of any shape over a mesh, in the words of `muonrt layout`.
struct LayoutWords {
  std::string name;  // "FSDP2 x TP"
  std::string mesh, rank_array;
  std::string placements;  // of matrices; dims that a tensor lacks replicate
  std::string stack;       // of stacks; "": as matrices
  std::string reading, flat_dims;
  std::string cuts;  // in place of placements
  /// "row-bounds", "owner" or "flat" over the mesh dims that no cut names, the numbers uneven and
  /// different for each tensor; or "".
  std::string last;
};

/// A layout of one tensor in the words of `muonrt layout`, as they are: "" where there is none.
struct ExactWords {
  std::vector<int64_t> shape;
  std::string mesh, placements, reading, cuts, row_bounds, owner, flat;
};

/// So many elements of the tensor, row-major, that lie one after the other in a rank's buffer.
struct Stretch {
  int64_t element, local, count;
};

/// Number of ranks of a mesh in words. Throws where they are none.
int64_t mesh_ranks(const std::string& mesh);

/// How one tensor lies: what the C ABI is told, and what every rank then holds.
class TensorLayout {
 public:
  /// @param index  of the tensor; varies the numbers of `last`.
  /// Throws where the words are none, or do not fit the tensor.
  TensorLayout(const LayoutWords& words, const ModelTensor& tensor, size_t index);
  /// Throws where the words are none, or do not fit the shape.
  explicit TensorLayout(const ExactWords& words);
  ~TensorLayout();
  TensorLayout(TensorLayout&&) noexcept;

  /// Valid as long as this object.
  const muonrt_layout_t* c() const;
  std::vector<Stretch> stretches(int rank) const;
  /// Addends of a gradient that is a sum over mesh dimensions (1: it is none), and which of them
  /// `rank` holds.
  int64_t partial_grads() const;
  int64_t partial_grad(int rank) const;
  /// One line for a person.
  std::string describe() const;

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace muonrt::tool
