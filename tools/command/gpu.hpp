#pragma once

#include <string>

namespace muonrt::tool {

/// Exit status of a command that needs a GPU on a machine without one.
constexpr int kSkipped = 77;

/// If `device` is "cuda" and there is no GPU, prints a message and returns kSkipped. Otherwise
/// returns 0.
int skip_without_gpu(const std::string& device, bool json);

/// Describes the copies of cuBLAS and NCCL that muonrt loads, or the reason why it cannot load
/// them.
std::string cublas_text();
std::string nccl_text();

/// Returns the index of the GPU of a rank: the rank modulo the number of GPUs that this process can
/// access.
int gpu_of(int rank);

/// Makes GPU `index` the current device of the calling thread; see backend/cuda_device.hpp.
void use_gpu(int index);

}  // namespace muonrt::tool
