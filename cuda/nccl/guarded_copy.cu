// Kernels that copy the result of a reduction to its destination, unless the communicator is
// closed. If NCCL aborts an operation, the operation may have written a part of its output, and a
// vote must never pass because of a partial result. Each kernel runs in one thread block, because a
// reduction has at most a few hundred values.

#include "base/float_order.hpp"
#include "cuda/device/launch.hpp"
#include "cuda/kernels/kernels.hpp"

namespace muonrt::cuda {

namespace {

struct CopyArguments {
  const int64_t* from;
  int64_t* to;
  int64_t n;
  const volatile int32_t* closed;
};

struct ClearArguments {
  int64_t* flag;
  const volatile int32_t* closed;
};

struct OrderArguments {
  const float* from;
  int32_t* to;
  int64_t n;
};

struct CopyFloatsArguments {
  const int32_t* from;
  float* to;
  int64_t n;
  const volatile int32_t* closed;
};

// One thread reads the flag for the whole block, so a vote is copied completely or not at all.
__device__ bool is_closed(const volatile int32_t* closed) {
  return __syncthreads_or(threadIdx.x == 0 && *closed != 0) != 0;
}

__global__ void copy_unless_closed_kernel(CopyArguments a) {
  if (is_closed(a.closed)) return;
  for (int64_t i = threadIdx.x; i < a.n; i += kThreads) a.to[i] = a.from[i];
}

// The stream has set the flag. The fence makes the flag visible before `closed` is read, so at
// least one side, the host or the GPU, sees the value that the other side has written.
__global__ void clear_if_closed_kernel(ClearArguments a) {
  __threadfence_system();
  if (*a.closed) *a.flag = 0;
}

// The integers have the same order as the floats, and NaN is the largest value. The maximum of the
// integers is therefore the maximum of the floats.
__global__ void order_floats_kernel(OrderArguments a) {
  for (int64_t i = threadIdx.x; i < a.n; i += kThreads) a.to[i] = ordered_from_f32(a.from[i]);
}

__global__ void copy_floats_unless_closed_kernel(CopyFloatsArguments a) {
  if (is_closed(a.closed)) return;
  for (int64_t i = threadIdx.x; i < a.n; i += kThreads) a.to[i] = f32_from_ordered(a.from[i]);
}

}  // namespace

void load_guarded_copies() {
  load("copy_unless_closed", copy_unless_closed_kernel);
  load("clear_if_closed", clear_if_closed_kernel);
  load("order_floats", order_floats_kernel);
  load("copy_floats_unless_closed", copy_floats_unless_closed_kernel);
}

void copy_unless_closed(const int64_t* from, int64_t* to, int64_t n, const int32_t* closed,
                        cudaStream_t stream) {
  launch("copy_unless_closed", copy_unless_closed_kernel, grid_of(1), kThreads,
         CopyArguments{from, to, n, closed}, stream);
}

void clear_if_closed(int64_t* flag, const int32_t* closed, cudaStream_t stream) {
  launch("clear_if_closed", clear_if_closed_kernel, grid_of(1), 1, ClearArguments{flag, closed},
         stream);
}

void order_floats(const float* from, int32_t* to, int64_t n, cudaStream_t stream) {
  launch("order_floats", order_floats_kernel, grid_of(1), kThreads, OrderArguments{from, to, n},
         stream);
}

void copy_floats_unless_closed(const int32_t* from, float* to, int64_t n, const int32_t* closed,
                               cudaStream_t stream) {
  launch("copy_floats_unless_closed", copy_floats_unless_closed_kernel, grid_of(1), kThreads,
         CopyFloatsArguments{from, to, n, closed}, stream);
}

}  // namespace muonrt::cuda
