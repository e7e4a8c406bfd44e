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
  /// Chooses the algorithms of the forms that products of this size take.
  virtual void reserve(int64_t m, int64_t n, int64_t k, DType dtype) = 0;
  /// C = alpha A op(B) + beta D for each matrix of the batch; `symmetric` and `gamma` are not
  /// looked at. All operands have one dtype; k > 0.
  virtual void multiply(const Product& product, cudaStream_t stream) = 0;
};

/// Each shape by an algorithm that is chosen for the shape alone: its bits never depend on the
/// batch.
/// @param device  lends the workspace; outlives the result.
/// @param index   its GPU, which is current here and in every call.
/// Errors: NOT_SUPPORTED if the library is not there.
std::unique_ptr<VendorProducts> make_vendor_products(Device& device, int index);

}  // namespace muonrt::cuda
