#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "backend/ops.hpp"

namespace muonrt::cuda {

/// Computes dense products with the vendor's library.
class VendorProducts {
 public:
  virtual ~VendorProducts() = default;
  /// Returns the name and version for Device::describe.
  virtual std::string identity() const = 0;
  /// Chooses the algorithms for products of this size in advance.
  virtual void reserve(int64_t m, int64_t n, int64_t k, DType dtype) = 0;
  /// Computes C = alpha A op(B) + beta D for each matrix of the batch, and ignores `gamma`. All
  /// operands have the same dtype, and k > 0. If the result is symmetric, elements below the
  /// diagonal may be left unset.
  virtual void multiply(const Product& product, cudaStream_t stream) = 0;
};

/// Creates an object that selects an algorithm for each shape. The choice depends only on the
/// shape, so the bits of the results do not depend on the batch.
/// @param device  allocates the workspace; must outlive the result.
/// @param index  index of the device's GPU, which must be current here and in every call.
/// Errors: NOT_SUPPORTED if the library is not installed.
std::unique_ptr<VendorProducts> make_vendor_products(Device& device, int index);

}  // namespace muonrt::cuda
