#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/dtype.hpp"

namespace muonrt {

/// A batch of matrices in the caller's memory, which the device must be able to access. The last
/// two dimensions are rows and columns, and one of them must have stride 1. Strides are in elements
/// and must not be negative.
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

/// Checks that the two views are identical or share no element. Errors: INVALID_ARGUMENT, with both
/// names.
void require_same_or_apart(const TensorView& out, const char* out_name, const TensorView& in,
                           const char* in_name);

/// Returns the index of a non-finite element, or nullopt. The host must be able to access the
/// tensor.
std::optional<std::vector<int64_t>> find_nonfinite(const TensorView& x);

}  // namespace muonrt
