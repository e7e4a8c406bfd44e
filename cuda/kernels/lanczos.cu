// Lanczos's method on X X^T (Ops::lanczos; Golub and Van Loan, Matrix Computations, section 10.1).
// X is m x n with any ld. Each step consists of these launches:
// 1. X^T v for each group of kLanczosRows rows, with a thread for each column.
// 2. The sum of the groups, in order.
// 3. X times this sum, with a warp for each row.
// 4. The step's row of the tridiagonal matrix, with a thread block for each matrix.
//
// Sums have the same order as on the host: there are 32 chains, one for each lane, and the upper
// half is added to the lower half until one sum is left.

#include "backend/health.hpp"
#include "cuda/device/launch.hpp"
#include "cuda/kernels/elements.hpp"
#include "cuda/kernels/kernels.hpp"

namespace muonrt::cuda {

namespace {

constexpr int kWarp = 32;
constexpr int kFinishThreads = 1024;

struct LanczosArguments {
  MatrixBatch x;
  float* workspace;
  Lanczos* out;
  int64_t step;

  __device__ float* space(int64_t matrix) const {
    return workspace + matrix * lanczos_space(x.rows, x.cols).floats;
  }
  __device__ float element(int64_t matrix, int64_t row, int64_t col) const {
    return widen(load<1>(x.data, x.dtype, matrix * x.stride + row * x.ld + col), x.dtype).x[0];
  }
};

__device__ inline float halved(float chain) {
  for (int width = kWarp / 2; width > 0; width /= 2)
    chain += __shfl_down_sync(0xffffffffu, chain, width);
  return chain;  // the result is valid in lane 0
}

__device__ inline float dot(const float* x, const float* y, int64_t n, int lane) {
  float chain = 0.0f;
  for (int64_t i = lane; i < n; i += kWarp) chain += x[i] * y[i];
  return halved(chain);
}

__global__ void __launch_bounds__(kThreads) lanczos_start_kernel(LanczosArguments a) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= a.x.rows) return;
  for (int64_t matrix = blockIdx.y; matrix < a.x.count; matrix += gridDim.y)
    a.space(matrix)[i] = lanczos_start(i, a.x.rows);
}

__global__ void __launch_bounds__(kThreads) lanczos_partial_kernel(LanczosArguments a) {
  const int64_t col = int64_t{blockIdx.x} * kThreads + threadIdx.x, block = blockIdx.y;
  if (col >= a.x.cols) return;
  const LanczosSpace at = lanczos_space(a.x.rows, a.x.cols);
  const int64_t first = block * kLanczosRows, after = first + kLanczosRows;
  const int64_t last = after < a.x.rows ? after : a.x.rows;
  for (int64_t matrix = blockIdx.z; matrix < a.x.count; matrix += gridDim.z) {
    float* const space = a.space(matrix);
    const float* const v = space + a.step * a.x.rows;
    float sum = 0.0f;
    for (int64_t row = first; row < last; ++row) sum += v[row] * a.element(matrix, row, col);
    space[at.partial + block * a.x.cols + col] = sum;
  }
}

__global__ void __launch_bounds__(kThreads) lanczos_product_kernel(LanczosArguments a) {
  const int64_t col = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (col >= a.x.cols) return;
  const LanczosSpace at = lanczos_space(a.x.rows, a.x.cols);
  for (int64_t matrix = blockIdx.y; matrix < a.x.count; matrix += gridDim.y) {
    float* const space = a.space(matrix);
    float sum = 0.0f;
    for (int64_t i = at.partial + col; i < at.floats; i += a.x.cols) sum += space[i];
    space[at.product + col] = sum;
  }
}

__global__ void __launch_bounds__(kThreads) lanczos_image_kernel(LanczosArguments a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (row >= a.x.rows) return;
  const LanczosSpace at = lanczos_space(a.x.rows, a.x.cols);
  for (int64_t matrix = blockIdx.y; matrix < a.x.count; matrix += gridDim.y) {
    float* const space = a.space(matrix);
    float chain = 0.0f;
    for (int64_t col = lane; col < a.x.cols; col += kWarp)
      chain += a.element(matrix, row, col) * space[at.product + col];
    chain = halved(chain);
    if (lane == 0) space[at.image + row] = chain;
  }
}

__global__ void __launch_bounds__(kFinishThreads) lanczos_finish_kernel(LanczosArguments a) {
  __shared__ float all[kLanczosSteps];
  __shared__ float off_diagonal;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int64_t m = a.x.rows, step = a.step;
  const LanczosSpace at = lanczos_space(m, a.x.cols);
  for (int64_t matrix = blockIdx.x; matrix < a.x.count; matrix += gridDim.x) {
    float* const basis = a.space(matrix);
    float* const w = basis + at.image;
    float diagonal = 0.0f;
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t k = warp; k <= step; k += kFinishThreads / kWarp) {
        const float c = dot(w, basis + k * m, m, lane);
        if (lane == 0) all[k] = c;
      }
      __syncthreads();
      for (int64_t i = thread; i < m; i += kFinishThreads) {
        float x = w[i];
        for (int64_t k = 0; k <= step; ++k) x -= all[k] * basis[k * m + i];
        w[i] = x;
      }
      diagonal += all[step];
      __syncthreads();
    }
    if (warp == 0) {
      const float squares = dot(w, w, m, lane);
      if (lane == 0) {
        off_diagonal = sqrtf(squares);
        a.out[matrix].diagonal[step] = diagonal;
        a.out[matrix].off_diagonal[step] = off_diagonal;
      }
    }
    __syncthreads();
    for (int64_t i = thread; i < m; i += kFinishThreads)
      basis[(step + 1) * m + i] = off_diagonal > 0.0f ? w[i] / off_diagonal : 0.0f;
    __syncthreads();
  }
}

}  // namespace

void lanczos(const MatrixBatch& x, float* workspace, Lanczos* out, cudaStream_t stream) {
  const int64_t m = x.rows, deep = grid_depth(x.count);
  const int64_t columns = (x.cols + kThreads - 1) / kThreads;
  const int64_t blocks = (m + kLanczosRows - 1) / kLanczosRows;
  constexpr int64_t kRows = kThreads / kWarp;
  LanczosArguments a{x, workspace, out, 0};
  launch("lanczos_start", lanczos_start_kernel, grid_of((m + kThreads - 1) / kThreads, deep),
         kThreads, a, stream);
  for (a.step = 0; a.step < m && a.step < kLanczosSteps; ++a.step) {
    launch("lanczos_partial", lanczos_partial_kernel, grid_of(columns, blocks, deep), kThreads, a,
           stream);
    launch("lanczos_product", lanczos_product_kernel, grid_of(columns, deep), kThreads, a, stream);
    launch("lanczos_image", lanczos_image_kernel, grid_of((m + kRows - 1) / kRows, deep), kThreads,
           a, stream);
    launch("lanczos_finish", lanczos_finish_kernel, grid_of(x.count), kFinishThreads, a, stream);
  }
}

}  // namespace muonrt::cuda
