#include "backend/cuda_device.hpp"
#include "cuda/device/cuda_device.hpp"

namespace muonrt {

bool cuda_is_built() noexcept { return true; }

int cuda_device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

void use_cuda_device(int index) noexcept {
  if (cudaSetDevice(index) != cudaSuccess) cudaGetLastError();
}

std::unique_ptr<Device> make_cuda_device(int index, const CudaSettings& settings) {
  return std::make_unique<cuda::CudaDevice>(index, settings);
}

}  // namespace muonrt
