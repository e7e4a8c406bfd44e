#include "cuda/device/check.hpp"

#include "base/error.hpp"

namespace muonrt::cuda {

void check(cudaError_t result, const char* call, const char* function, int line) {
  if (result == cudaSuccess) return;
  // The runtime would report this error again to the next call of cudaGetLastError.
  cudaGetLastError();
  const Status status =
      result == cudaErrorMemoryAllocation ? Status::kOutOfMemory : Status::kDevice;
  throw Error(status, cat(call, " failed in ", function, ", line ", line, ": ",
                          cudaGetErrorName(result), ", ", cudaGetErrorString(result)));
}

}  // namespace muonrt::cuda
