// Scales the rows for AOL: computes each row's factor from the sum of absolute values in the row of
// the Gram matrix, and multiplies x and the Gram matrix by the factors. Sums have the same order as
// on the host: there are 32 chains, one for each lane, and the upper half is added to the lower
// half until one sum is left. Matrices are rows x cols with any ld. A batch takes two launches:
// `factors` uses a warp for each row, and `apply` uses a thread block for each row.

#include "backend/norm_rules.hpp"
#include "cuda/device/launch.hpp"
#include "cuda/kernels/kernels.hpp"
#include "cuda/kernels/rectangle.cuh"

namespace muonrt::cuda {

namespace {

constexpr int kWarp = 32;

struct RowArguments {
  MatrixBatch gram, x, factors;
  AolRule rule;
};

__device__ inline float magnitude(float x) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7fffffffu);
}

__global__ void __launch_bounds__(kThreads) row_factors_kernel(RowArguments a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  if (row >= a.gram.rows) return;
  for (int64_t matrix = blockIdx.y; matrix < a.gram.count; matrix += gridDim.y) {
    const int64_t first = matrix * a.gram.stride + row * a.gram.ld;
    float chain = 0.0f;
    for (int64_t i = lane; i < a.gram.cols; i += kWarp)
      chain += magnitude(widen(load<1>(a.gram.data, a.gram.dtype, first + i), a.gram.dtype).x[0]);
    for (int width = kWarp / 2; width > 0; width /= 2)
      chain += __shfl_down_sync(0xffffffffu, chain, width);
    if (lane == 0)
      static_cast<float*>(a.factors.data)[matrix * a.factors.stride + row] =
          row_factor(chain, a.rule);
  }
}

/// Multiplies a row by `factor`, and by all[col] if `all` is not null.
struct ScaleBody {
  MatrixBatch m;
  int64_t first;
  const float* all;
  float factor;

  template <int N>
  __device__ void run(int, int col, Lanes lanes) {
    Values<N> x = widen(load<N>(m.data, m.dtype, first + col), m.dtype);
    for (int i = 0; i < N; ++i) x.x[i] *= all ? all[col + i] * factor : factor;
    store(m.data, m.dtype, first + col, x, lanes);
  }
};

__device__ inline void scale_row(const MatrixBatch& m, int64_t matrix, int64_t row,
                                 const float* all, float factor) {
  const int64_t first = matrix * m.stride + row * m.ld;
  ScaleBody body{m, first, all, factor};
  for_elements(1, static_cast<int>(m.cols), aligned(m.data, m.dtype, first), body);
}

__global__ void __launch_bounds__(kThreads) apply_factors_kernel(RowArguments a) {
  const int64_t row = blockIdx.x;
  for (int64_t matrix = blockIdx.y; matrix < a.gram.count; matrix += gridDim.y) {
    const float* all = static_cast<const float*>(a.factors.data) + matrix * a.factors.stride;
    scale_row(a.x, matrix, row, nullptr, all[row]);
    scale_row(a.gram, matrix, row, all, all[row]);
  }
}

}  // namespace

void scale_rows(const MatrixBatch& gram, const MatrixBatch& x, const MatrixBatch& factors,
                const AolRule& rule, cudaStream_t stream) {
  const int64_t deep = grid_depth(gram.count);
  const RowArguments arguments{gram, x, factors, rule};
  constexpr int64_t kRows = kThreads / kWarp;
  launch("row_factors", row_factors_kernel, grid_of((gram.rows + kRows - 1) / kRows, deep),
         kThreads, arguments, stream);
  launch("apply_factors", apply_factors_kernel, grid_of(gram.rows, deep), kThreads, arguments,
         stream);
}

}  // namespace muonrt::cuda
