#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "base/error.hpp"
#include "cuda/device/check.hpp"

namespace muonrt::cuda {

/// Returns the CUDA 12.0 version of a driver function. The CUDA runtime looks up the function, so
/// muonrt need not be linked with the driver's library. Errors: NOT_SUPPORTED if the driver does
/// not provide the function.
template <class Function>
Function driver_function(const char* name) {
  constexpr unsigned kSince = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  MUONRT_CUDA(
      cudaGetDriverEntryPointByVersion(name, &function, kSince, cudaEnableDefault, &result));
  MUONRT_REQUIRE(result == cudaDriverEntryPointSuccess && function, Status::kNotSupported,
                 "the driver has no ", name, " (it is older than CUDA 12); update it");
  return reinterpret_cast<Function>(function);
}

}  // namespace muonrt::cuda
