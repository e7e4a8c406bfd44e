#pragma once

#include <cuda_runtime_api.h>

namespace muonrt::cuda {

/// Throws unless `result` is cudaSuccess. The error is OUT_OF_MEMORY if the device's memory is
/// exhausted, and otherwise DEVICE. The message contains the call, its location and the runtime's
/// error text.
void check(cudaError_t result, const char* call, const char* function, int line);

}  // namespace muonrt::cuda

/// Throws an Error if the CUDA call fails.
#define MUONRT_CUDA(call) ::muonrt::cuda::check((call), #call, __func__, __LINE__)
