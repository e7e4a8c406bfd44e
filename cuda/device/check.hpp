#pragma once

#include <cuda_runtime_api.h>

namespace muonrt::cuda {

/// Errors: OUT_OF_MEMORY if the device's memory is exhausted, DEVICE for whatever else is not
/// success; call, place and the runtime's words are in the message.
void check(cudaError_t result, const char* call, const char* function, int line);

}  // namespace muonrt::cuda

/// Turns the error of a CUDA call into an Error.
#define MUONRT_CUDA(call) ::muonrt::cuda::check((call), #call, __func__, __LINE__)
