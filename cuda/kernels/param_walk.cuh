#pragma once

#include <cuda_runtime.h>

#include "cuda/device/launch.hpp"
#include "cuda/kernels/jobs.hpp"

namespace muonrt::cuda {

/// Computes inclusive prefix sums over the threads of a thread block of kThreads. `sums` holds the
/// results until the next call.
__device__ inline void sum_up_to_each(int64_t mine, int64_t (&sums)[kThreads]) {
  const int thread = static_cast<int>(threadIdx.x);
  sums[thread] = mine;
  for (int step = 1; step < kThreads; step *= 2) {
    __syncthreads();
    const int64_t before = thread >= step ? sums[thread - step] : 0;
    __syncthreads();
    sums[thread] += before;
  }
  __syncthreads();
}

/// Selects the elements of a gradient that the step, or only its clipping, reads.
struct GradientElements {
  __device__ static int64_t of(const ParamView& view) {
    return view.active || view.clip_only ? view.grads() : 0;
  }
};
/// Selects the elements of an active parameter.
struct ActiveElements {
  __device__ static int64_t of(const ParamView& view) { return view.active ? view.numel : 0; }
};

/// Calls body(view, param, first element, count) for parts of at most kJobElements elements of each
/// parameter in the list; Elements::of returns a parameter's number of elements. All thread blocks
/// together process each element once, and all threads of a thread block call the body together.
/// The sizes are read on the device, and the parts are distributed to the thread blocks
/// round-robin. The list is processed in windows of kThreads parameters.
template <class Elements, class Body>
__device__ inline void for_each_stretch(const int32_t* list, int64_t count, const ParamView* params,
                                        Body&& body) {
  __shared__ int64_t ends[kThreads];  // for each parameter of the window: index after its last part
  const int64_t thread = threadIdx.x;
  // index of the thread block's next part, counted from the first part of the window
  int64_t next = blockIdx.x;
  for (int64_t begin = 0; begin < count; begin += kThreads) {
    const int64_t left = count - begin;
    const int window = left < kThreads ? static_cast<int>(left) : kThreads;
    int64_t parts = 0;
    if (thread < window)
      parts = (Elements::of(params[list[begin + thread]]) + kJobElements - 1) / kJobElements;
    sum_up_to_each(parts, ends);
    const int64_t total = ends[window - 1];
    for (; next < total; next += gridDim.x) {
      int low = 0, high = window - 1;  // finds the first parameter that ends after `next`
      while (low < high) {
        const int middle = (low + high) / 2;
        if (ends[middle] > next) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      const int32_t param = list[begin + low];
      const ParamView& view = params[param];
      const int64_t first = (next - (low > 0 ? ends[low - 1] : 0)) * kJobElements;
      const int64_t rest = Elements::of(view) - first;
      body(view, param, first, static_cast<int>(rest < kJobElements ? rest : kJobElements));
    }
    next -= total;
    __syncthreads();  // waits before `ends` is written again
  }
}

}  // namespace muonrt::cuda
