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
  /// Usually all matrices of an owner in a chunk, because chunk_bytes ends a chunk earlier: at the
  /// default of 256 MiB after 2^27 elements of 16 bits. The limit keeps the offsets
  /// of 16-bit elements below 2^30 bytes.
  LaunchLimits launch_limits() const override {
    return {.max_elements = int64_t{1} << 29, .mixes_shapes = own_};
  }

 private:
  bool own_;
};

}  // namespace muonrt
