#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <vector>

#include "backend/device.hpp"
#include "backend/ops.hpp"
#include "cuda/products/cublas_descriptors.hpp"

namespace muonrt::cuda {

/// A cuBLASLt handle on one GPU, with scratch memory. It finds algorithms and launches them.
class CublasLibrary {
 public:
  /// @param device  allocates the scratch memory; must outlive this object.
  /// @param index  index of the device's GPU, which must be current here and in every call.
  CublasLibrary(Device& device, int index);
  ~CublasLibrary();
  CublasLibrary(const CublasLibrary&) = delete;
  CublasLibrary& operator=(const CublasLibrary&) = delete;

  /// Returns algorithms in the library's order of preference, for batches with the number of
  /// matrices that the layouts specify. Returns an empty list if the library does not support the
  /// shape.
  std::vector<cublasLtMatmulAlgo_t> proposed(const MatmulDescriptors& descriptors, Depth depth,
                                             int limit) const;
  /// Returns whether the algorithm can compute all matrices of the layouts in one launch. For this
  /// number of matrices, it may need more workspace than for the number for which it was chosen.
  bool takes(const MatmulDescriptors& descriptors, const cublasLtMatmulAlgo_t& algorithm) const;
  /// Returns whether the algorithm supports launches of several matrices.
  bool has_batches(const cublasLtMatmulAlgo_t& algorithm) const;

  /// Computes as many matrices of the product as the layouts specify, starting with matrix `first`.
  void launch(const MatmulDescriptors& descriptors, const cublasLtMatmulAlgo_t& algorithm,
              const Product& product, int64_t first, cudaStream_t stream) const;

 private:
  const int index_;
  cublasLtHandle_t handle_ = nullptr;
  Buffer scratch_;
};

}  // namespace muonrt::cuda
