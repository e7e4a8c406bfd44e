#pragma once

#include <cstdint>

#include "base/checked.hpp"
#include "base/dtype.hpp"

namespace muonrt {

/// The host's: rows begin on 64-byte (f32) boundaries, and nothing is added to the usual sizes,
/// whose operands are then read in place.
constexpr int64_t host_ld(int64_t cols) { return round_up(cols, 16); }
/// A GPU's: rows begin on multiples of 64 bytes.
constexpr int64_t cuda_ld(int64_t cols, DType dtype) { return round_up(cols, 64 / size_of(dtype)); }

/// What of a slot's matrices is best given to products at the same time; changes no bit.
struct LaunchLimits {
  int64_t max_elements = 0;   // of all matrices at most; one alone may have more
  bool mixes_shapes = false;  // of different shapes, too; else equal ones alone
};

/// How matrices lie on a kind of device, and how many of them it takes at once: what their scratch
/// follows from. Known where the device is not.
class MatrixRules {
 public:
  virtual ~MatrixRules() = default;

  /// Leading dimension for a matrix with `cols` columns; a function of the shape alone.
  virtual int64_t leading_dimension(int64_t cols, DType dtype) const = 0;
  virtual LaunchLimits launch_limits() const = 0;
};

class HostRules final : public MatrixRules {
 public:
  int64_t leading_dimension(int64_t cols, DType) const override { return host_ld(cols); }
  /// Tiny matrices keep all threads busy as batches; more of them, or shapes side by side, would
  /// only drive each other out of the caches.
  LaunchLimits launch_limits() const override {
    return {.max_elements = 1 << 20, .mixes_shapes = false};
  }
};

class CudaRules final : public MatrixRules {
 public:
  /// @param own  whether symmetric products run in kernels of our own, which take several shapes in
  ///     a launch; the vendor's and the naive ones do not.
  explicit CudaRules(bool own = true) : own_(own) {}
  int64_t leading_dimension(int64_t cols, DType dtype) const override {
    return cuda_ld(cols, dtype);
  }
  /// Elements: what a chunk of a GPU's default size (256 MiB) holds in half precision.
  LaunchLimits launch_limits() const override {
    return {.max_elements = int64_t{1} << 27, .mixes_shapes = own_};
  }

 private:
  bool own_;
};

}  // namespace muonrt
