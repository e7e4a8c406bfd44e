#pragma once

#include <cstdint>

#include "base/checked.hpp"
#include "base/dtype.hpp"

namespace muonrt {

/// Leading dimension on the host: rows of f32 begin at multiples of 64 bytes. Common sizes get no
/// padding, so that products read their operands in place.
constexpr int64_t host_ld(int64_t cols) { return round_up(cols, 16); }
/// Leading dimension on a GPU: rows begin at multiples of 64 bytes.
constexpr int64_t cuda_ld(int64_t cols, DType dtype) { return round_up(cols, 64 / size_of(dtype)); }

/// How many matrices of a chunk one grouped launch may hold, and whether their shapes may differ.
/// Does not change a bit of the results.
struct LaunchLimits {
  int64_t max_elements = 0;   // maximum of all matrices together; a single matrix may exceed it
  bool mixes_shapes = false;  // whether the matrices may have different shapes
};

/// How a kind of device stores matrices, and how many of them one launch holds. The size of the
/// scratch memory follows from this, and it can be computed without the device.
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
  /// Batches keep all threads busy even if the matrices are tiny. Larger launches, or launches with
  /// several shapes, would only evict each other's data from the caches.
  LaunchLimits launch_limits() const override {
    return {.max_elements = 1 << 20, .mixes_shapes = false};
  }
};

class CudaRules final : public MatrixRules {
 public:
  /// @param own  whether symmetric products run in our own kernels, which accept several shapes in
  ///     one launch. The vendor's and the naive kernels do not.
  explicit CudaRules(bool own = true) : own_(own) {}
  int64_t leading_dimension(int64_t cols, DType dtype) const override {
    return cuda_ld(cols, dtype);
  }
  /// max_elements is the number of 16-bit elements in a chunk of the default size for GPUs
  /// (256 MiB).
  LaunchLimits launch_limits() const override {
    return {.max_elements = int64_t{1} << 27, .mixes_shapes = own_};
  }

 private:
  bool own_;
};

}  // namespace muonrt
