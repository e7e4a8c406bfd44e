// What a reduction has summed or compared, handed on to where it is waited for, unless the
// communicator was closed first: an operation that NCCL aborts may have written part of its output,
// and a vote must never pass on that. One block; a few hundred values.

#include "base/float_order.hpp"
#include "cuda/device/launch.hpp"
#include "cuda/kernels/kernels.hpp"

namespace muonrt::cuda {

namespace {

struct DeliverArguments {
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

struct RestoreArguments {
  const int32_t* from;
  float* to;
  int64_t n;
  const volatile int32_t* closed;
};

// One look for all threads: half a ballot is none.
__device__ bool look(const volatile int32_t* closed) {
  return __syncthreads_or(threadIdx.x == 0 && *closed != 0) != 0;
}

__global__ void deliver_kernel(DeliverArguments a) {
  if (look(a.closed)) return;
  for (int64_t i = threadIdx.x; i < a.n; i += kThreads) a.to[i] = a.from[i];
}

// The flag that the stream has set is out before this looks, so that host and GPU cannot both miss
// what the other has written.
__global__ void retract_kernel(ClearArguments a) {
  __threadfence_system();
  if (*a.closed) *a.flag = 0;
}

// The maximum of these integers is the maximum of the values, NaN above all.
__global__ void order_kernel(OrderArguments a) {
  for (int64_t i = threadIdx.x; i < a.n; i += kThreads) a.to[i] = ordered_from_f32(a.from[i]);
}

__global__ void restore_kernel(RestoreArguments a) {
  if (look(a.closed)) return;
  for (int64_t i = threadIdx.x; i < a.n; i += kThreads) a.to[i] = f32_from_ordered(a.from[i]);
}

}  // namespace

void load_guarded_copies() {
  load("deliver", deliver_kernel);
  load("retract", retract_kernel);
  load("order_floats", order_kernel);
  load("copy_floats_unless_closed", restore_kernel);
}

void copy_unless_closed(const int64_t* from, int64_t* to, int64_t n, const int32_t* closed,
                        cudaStream_t stream) {
  launch("deliver", deliver_kernel, grid_of(1), kThreads, DeliverArguments{from, to, n, closed},
         stream);
}

void clear_if_closed(int64_t* flag, const int32_t* closed, cudaStream_t stream) {
  launch("retract", retract_kernel, grid_of(1), 1, ClearArguments{flag, closed}, stream);
}

void order_floats(const float* from, int32_t* to, int64_t n, cudaStream_t stream) {
  launch("order_floats", order_kernel, grid_of(1), kThreads, OrderArguments{from, to, n}, stream);
}

void copy_floats_unless_closed(const int32_t* from, float* to, int64_t n, const int32_t* closed,
                               cudaStream_t stream) {
  launch("copy_floats_unless_closed", restore_kernel, grid_of(1), kThreads,
         RestoreArguments{from, to, n, closed}, stream);
}

}  // namespace muonrt::cuda
