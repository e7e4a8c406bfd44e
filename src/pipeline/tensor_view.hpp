#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/dtype.hpp"

namespace muonrt {

/// A caller's batch of matrices in memory that the device reaches. The last two dimensions are rows
/// and columns, one of which has stride 1; strides are in elements and not negative.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape, strides;

  int64_t rows() const { return shape[shape.size() - 2]; }
  int64_t cols() const { return shape.back(); }
  int64_t count() const;  // of matrices
  /// The offset of a matrix, in elements.
  int64_t offset_of(int64_t matrix) const;
  /// Whether the columns are contiguous, and not the rows.
  bool column_major() const { return strides.back() != 1; }
  bool is_empty() const { return count() * rows() * cols() == 0; }
  friend bool operator==(const TensorView&, const TensorView&) = default;
};

/// Errors: INVALID_ARGUMENT, naming both, unless the tensors are the same one or share no element.
void require_same_or_apart(const TensorView& out, const char* out_name, const TensorView& in,
                           const char* in_name);

/// Returns the index of an element that is not finite, in memory that the host reaches.
std::optional<std::vector<int64_t>> find_nonfinite(const TensorView& x);

}  // namespace muonrt
