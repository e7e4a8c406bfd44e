#pragma once

#include <cstdint>

#include "base/checked.hpp"
#include "base/dtype.hpp"

namespace muonrt {

/// Returns the leading dimension on the host. Rows of f32 begin at multiples of 64 bytes. Common
/// sizes need no padding, so products can read their operands without a copy.
constexpr int64_t host_ld(int64_t cols) { return round_up(cols, 16); }
/// Returns the leading dimension on a GPU. Rows begin at multiples of 64 bytes.
constexpr int64_t cuda_ld(int64_t cols, DType dtype) { return round_up(cols, 64 / size_of(dtype)); }

/// Limits for grouped launches: how many matrices of a chunk one launch may contain, and whether
/// their shapes may differ. The limits do not change results bitwise.
struct LaunchLimits {
  /// Maximum total number of elements of the matrices. A single larger matrix is also allowed.
  int64_t max_elements = 0;
  bool mixes_shapes = false;  // true if the matrices may have different shapes
};

/// The rules that a kind of device uses to store matrices and to group them into launches. The size
/// of the scratch memory follows from these rules, so it can be computed without a device.
class MatrixRules {
 public:
  virtual ~MatrixRules() = default;

  /// Returns the leading dimension for a matrix with `cols` columns.
  virtual int64_t leading_dimension(int64_t cols, DType dtype) const = 0;
  virtual LaunchLimits launch_limits() const = 0;
};

class HostRules final : public MatrixRules {
 public:
  int64_t leading_dimension(int64_t cols, DType) const override { return host_ld(cols); }
  /// A batch of matrices of equal shape keeps all threads busy even if the matrices are tiny. In
  /// larger or mixed launches, matrices would only evict each other from the caches.
  LaunchLimits launch_limits() const override {
    return {.max_elements = 1 << 20, .mixes_shapes = false};
  }
};

class CudaRules final : public MatrixRules {
 public:
  /// @param own  true if muonrt's kernels compute symmetric products. These kernels accept multiple
  ///     shapes in one launch; the vendor's kernels and the naive kernels do not.
  explicit CudaRules(bool own = true) : own_(own) {}
  int64_t leading_dimension(int64_t cols, DType dtype) const override {
    return cuda_ld(cols, dtype);
  }
  /// Keeps the byte offsets of 16-bit elements below 2^30. An owner's matrices in a chunk are
  /// usually below the limit: with the default chunk_bytes of 256 MiB, a chunk has at most 2^27
  /// elements of 16 bits.
  LaunchLimits launch_limits() const override {
    return {.max_elements = int64_t{1} << 29, .mixes_shapes = own_};
  }

 private:
  bool own_;
};

}  // namespace muonrt
