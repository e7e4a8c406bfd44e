#include "cuda/device/check.hpp"

#include "base/error.hpp"

namespace muonrt::cuda {

void check(cudaError_t result, const char* call, const char* function, int line) {
  if (result == cudaSuccess) return;
  // This call clears the error. Otherwise the next cudaGetLastError would report the error again.
  cudaGetLastError();
  const Status status =
      result == cudaErrorMemoryAllocation ? Status::kOutOfMemory : Status::kDevice;
  throw Error(status, cat(call, " failed in ", function, ", line ", line, ": ",
                          cudaGetErrorName(result), ", ", cudaGetErrorString(result)));
}

}  // namespace muonrt::cuda
