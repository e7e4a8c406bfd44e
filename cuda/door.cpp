#include "backend/cuda_device.hpp"
#include "cuda/cuda_device.hpp"

namespace muonrt {

bool cuda_is_built() noexcept { return true; }

int cuda_device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

std::unique_ptr<Device> make_cuda_device(int index, bool naive_products,
                                         SymmetricProvider symmetric, bool graphs) {
  cuda::CudaDeviceOptions options;
  options.index = index;
  options.naive_products = naive_products;
  options.symmetric = symmetric;
  options.graphs = graphs;
  return std::make_unique<cuda::CudaDevice>(options);
}

}  // namespace muonrt
