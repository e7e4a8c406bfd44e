#include "backend/cuda_device.hpp"

namespace muonrt {

bool cuda_is_built() noexcept { return false; }

int cuda_device_count() noexcept { return 0; }

void use_cuda_device(int) noexcept {}

std::unique_ptr<Device> make_cuda_device(int, const CudaSettings&) {
  throw Error(Status::kNotSupported,
              "there is no CUDA device, because this build has no CUDA backend; configure with "
              "-DMUONRT_CUDA=ON, or use MUONRT_DEVICE_HOST");
}

}  // namespace muonrt
