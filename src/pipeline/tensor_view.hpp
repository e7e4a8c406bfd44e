#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/dtype.hpp"

namespace muonrt {

/// A batch of matrices in the caller's memory, which the device must be able to access. The last
/// two dimensions are rows and columns, and one of them must have stride 1. Strides are in elements
/// and not negative.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape, strides;

  int64_t rows() const { return shape[shape.size() - 2]; }
  int64_t cols() const { return shape.back(); }
  int64_t count() const;  // number of matrices
  /// Returns the offset of a matrix in elements.
  int64_t offset_of(int64_t matrix) const;
  /// Returns true if columns are contiguous and rows are not.
  bool column_major() const { return strides.back() != 1; }
  bool is_empty() const { return count() * rows() * cols() == 0; }
  friend bool operator==(const TensorView&, const TensorView&) = default;
};

/// Errors: INVALID_ARGUMENT, with both names, if the tensors are different but share an element.
void require_same_or_apart(const TensorView& out, const char* out_name, const TensorView& in,
                           const char* in_name);

/// Returns the index of a non-finite element, or nullopt. The tensor must be in memory that the
/// host can access.
std::optional<std::vector<int64_t>> find_nonfinite(const TensorView& x);

}  // namespace muonrt
