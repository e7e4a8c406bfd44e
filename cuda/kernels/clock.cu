// Writes the device's clock when the stream reaches the kernel. The kernel runs in one thread.

#include "cuda/device/launch.hpp"
#include "cuda/kernels/kernels.hpp"
#include "cuda/kernels/ptx_clock.cuh"

namespace muonrt::cuda {

namespace {

__global__ void write_clock_kernel(int64_t* where) { *where = global_timer(); }

}  // namespace

void write_clock(int64_t* where, cudaStream_t stream) {
  launch("write_clock", write_clock_kernel, grid_of(1), 1, where, stream);
}

}  // namespace muonrt::cuda
