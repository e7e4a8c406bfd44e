#include "command/gpu.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "backend/cuda_device.hpp"
#include "command/launch.hpp"
#include "muonrt/nccl.h"

namespace muonrt::tool {

int skip_without_gpu(const std::string& device, bool json) {
  if (device != "cuda" || cuda_device_count() > 0) return 0;
  const char* const why =
      cuda_is_built() ? "the driver lists none" : "this build has no CUDA backend";
  if (launcher_rank() != 0) return kSkipped;
  if (json) {
    fmt::print("{{\"skipped\":\"no CUDA device ({})\"}}\n", why);
  } else {
    fmt::print("skipped: no CUDA device ({})\n", why);
  }
  return kSkipped;
}

std::string cublas_text() {
  try {
    return describe_cublas();
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string nccl_text() {
  int32_t version = 0;
  if (muonrt_nccl_get_version(&version) != MUONRT_OK) return muonrt_get_last_error();
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

int gpu_of(int rank) { return rank % std::max(1, cuda_device_count()); }

void use_gpu(int index) { use_cuda_device(index); }

}  // namespace muonrt::tool
