#include "backend/cuda_device.hpp"
#include "cuda/device/check.hpp"
#include "cuda/device/cuda_device.hpp"

namespace muonrt {

bool cuda_is_built() noexcept { return true; }

int cuda_device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

CudaDeviceSize cuda_device_size(int index) {
  cudaDeviceProp properties;
  MUONRT_CUDA(cudaGetDeviceProperties(&properties, index));
  return {static_cast<int64_t>(properties.totalGlobalMem), properties.multiProcessorCount};
}

std::string describe_cuda() {
  const auto text = [](int version) { return cat(version / 1000, '.', version % 1000 / 10); };
  int runtime = 0, driver = 0;
  const bool known = cudaRuntimeGetVersion(&runtime) == cudaSuccess &&
                     cudaDriverGetVersion(&driver) == cudaSuccess;
  if (!known) cudaGetLastError();
  return cat("runtime ", runtime > 0 ? text(runtime) : "unknown", ", driver ",
             driver > 0 ? text(driver) : "none");
}

void use_cuda_device(int index) noexcept {
  if (cudaSetDevice(index) != cudaSuccess) cudaGetLastError();
}

std::unique_ptr<Device> make_cuda_device(int index, const CudaSettings& settings) {
  return std::make_unique<cuda::CudaDevice>(index, settings);
}

}  // namespace muonrt
