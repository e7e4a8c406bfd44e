#include "backend/cuda_device.hpp"

namespace muonrt {

namespace {

[[noreturn]] void reject(const char* what) {
  throw Error(Status::kNotSupported,
              cat("there is no ", what,
                  ", because this build has no CUDA backend; configure with -DMUONRT_CUDA=ON, or "
                  "use MUONRT_DEVICE_HOST"));
}

}  // namespace

bool cuda_is_built() noexcept { return false; }

int cuda_device_count() noexcept { return 0; }

CudaDeviceSize cuda_device_size(int) { reject("CUDA device"); }

std::string describe_cuda() { return "none"; }

std::string describe_cublas() { reject("cuBLAS"); }

std::optional<GpuClock> read_gpu_clock(int) { return std::nullopt; }

void use_cuda_device(int) noexcept {}

std::unique_ptr<Device> make_cuda_device(int, const CudaSettings&) { reject("CUDA device"); }

}  // namespace muonrt
