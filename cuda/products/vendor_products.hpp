#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "backend/ops.hpp"

namespace muonrt::cuda {

/// Dense products by the vendor's library.
class VendorProducts {
 public:
  virtual ~VendorProducts() = default;
  /// Name and version, for Device::describe.
  virtual std::string identity() const = 0;
  /// Chooses the algorithms for the products of this size.
  virtual void reserve(int64_t m, int64_t n, int64_t k, DType dtype) = 0;
  /// C = alpha A op(B) + beta D for each matrix of the batch; `gamma` is ignored. All operands have
  /// the same dtype; k > 0. Of a symmetric result, elements below the diagonal may be left out.
  virtual void multiply(const Product& product, cudaStream_t stream) = 0;
};

/// Selects an algorithm for each shape, from the shape alone, so the bits never depend on the
/// batch.
/// @param device  allocates the workspace; must outlive the result.
/// @param index  index of its GPU, which must be current here and in every call.
/// Errors: NOT_SUPPORTED if the library does not exist.
std::unique_ptr<VendorProducts> make_vendor_products(Device& device, int index);

}  // namespace muonrt::cuda
