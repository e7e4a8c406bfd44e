#pragma once

#include <string>

namespace muonrt::tool {

/// Exit status where what was asked for needs a GPU and there is none.
constexpr int kSkipped = 77;

/// Tells that there is no GPU, if `device` is "cuda" and there is none; then kSkipped, else 0.
int skip_without_gpu(const std::string& device, bool json);

/// Index of a rank's GPU: the GPUs that this process sees, counted round.
int gpu_of(int rank);

/// Makes it the calling thread's current one: backend/cuda_device.hpp says why.
void use_gpu(int index);

}  // namespace muonrt::tool
