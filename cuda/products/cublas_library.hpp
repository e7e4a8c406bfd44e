#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <vector>

#include "backend/device.hpp"
#include "backend/ops.hpp"
#include "cuda/products/cublas_descriptors.hpp"

namespace muonrt::cuda {

/// A handle of the library on a GPU, with scratch: finds algorithms and launches them.
class CublasLibrary {
 public:
  /// @param device  lends the scratch; outlives the result.
  /// @param index   its GPU, which is current here and in every call.
  CublasLibrary(Device& device, int index);
  ~CublasLibrary();
  CublasLibrary(const CublasLibrary&) = delete;
  CublasLibrary& operator=(const CublasLibrary&) = delete;

  /// Algorithms for as many matrices as the layouts say, best first as the library sees it; none
  /// for a shape that it does not compute.
  std::vector<cublasLtMatmulAlgo_t> proposed(const MatmulDescriptors& words, Depth depth,
                                             int most) const;
  /// Whether the algorithm computes as many in one launch as the layouts say: more than it was
  /// chosen for may want another workspace.
  bool takes(const MatmulDescriptors& words, const cublasLtMatmulAlgo_t& algorithm) const;
  /// Whether it has launches of many matrices at all.
  bool has_batches(const cublasLtMatmulAlgo_t& algorithm) const;

  /// As many matrices of the product as the layouts say, from `first` on.
  void launch(const MatmulDescriptors& words, const cublasLtMatmulAlgo_t& algorithm,
              const Product& product, int64_t first, cudaStream_t stream) const;

 private:
  const int index_;
  cublasLtHandle_t handle_ = nullptr;
  Buffer scratch_;
};

}  // namespace muonrt::cuda
