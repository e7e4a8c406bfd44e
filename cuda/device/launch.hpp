#pragma once

#include <cuda_runtime.h>

#include "cuda/device/check.hpp"

namespace muonrt::cuda {

/// Number of threads in a thread block, unless a kernel uses a different number.
constexpr int kThreads = 256;

/// Loads a kernel. Without this call, the kernel's first launch would load it, and loading might
/// wait for work that is running on the GPU.
template <class Arguments>
void load(const char* name, void (*kernel)(Arguments)) {
  cudaFuncAttributes attributes = {};
  check(cudaFuncGetAttributes(&attributes, kernel), name, "load", __LINE__);
}

/// Number of kernels that this thread has launched so far, including launches by the vendor's
/// library.
inline thread_local int64_t launches_of_thread = 0;

/// Launches kernel<<<grid, threads, shared_bytes, stream>>>(arguments) and checks the result.
/// `arguments` is one struct that is passed by value. Every `cluster` consecutive thread blocks run
/// at the same time and can access each other's shared memory. A programmatic kernel (compute
/// capability 9.0) may begin before the previous kernel has ended. It must therefore wait for the
/// previous kernel itself.
template <class Arguments>
void launch(const char* name, void (*kernel)(Arguments), dim3 grid, int threads,
            const Arguments& arguments, cudaStream_t stream, int shared_bytes = 0, int cluster = 1,
            bool programmatic = false) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (cluster > 1) {
    cudaLaunchAttribute& clustered = attributes[config.numAttrs++];
    clustered.id = cudaLaunchAttributeClusterDimension;
    clustered.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  if (programmatic) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  ++launches_of_thread;
  check(cudaLaunchKernelEx(&config, kernel, arguments), name, "launch", __LINE__);
}

/// Limits `matrices` to the maximum size of a grid's second or third dimension. Kernels process the
/// remaining matrices in a loop.
inline int64_t grid_depth(int64_t matrices) { return matrices < 65535 ? matrices : 65535; }

inline dim3 grid_of(int64_t x, int64_t y = 1, int64_t z = 1) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
}

}  // namespace muonrt::cuda
