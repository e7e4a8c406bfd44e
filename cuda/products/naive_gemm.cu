// Computes C = alpha A op(B) + beta D + gamma I in naive loops, for any mix of f32, bf16 and f16. A
// thread sums one element over the whole depth in order, in f32, and rounds once. In a symmetric
// product, the threads compute only the elements on and above the diagonal, and store each of them
// twice.

#include "cuda/device/launch.hpp"
#include "cuda/kernels/elements.hpp"
#include "cuda/kernels/kernels.hpp"

namespace muonrt::cuda {

namespace {

constexpr int kSide = 16;  // side of the square of elements that a thread block computes

__device__ inline float value_at(const MatrixBatch& m, int64_t matrix, int64_t row, int64_t col) {
  return widen(load<1>(m.data, m.dtype, matrix * m.stride + row * m.ld + col), m.dtype).x[0];
}

__device__ inline void set_value(const MatrixBatch& m, int64_t matrix, int64_t row, int64_t col,
                                 float value) {
  store(m.data, m.dtype, matrix * m.stride + row * m.ld + col, Values<1>{{value}});
}

__global__ void __launch_bounds__(kSide* kSide, 4) naive_gemm_kernel(Product p) {
  const int64_t col = int64_t{blockIdx.x} * kSide + threadIdx.x % kSide;
  const int64_t row = int64_t{blockIdx.y} * kSide + threadIdx.x / kSide;
  if (row >= p.c.rows || col >= p.c.cols || (p.symmetric && col < row)) return;
  for (int64_t matrix = blockIdx.z; matrix < p.c.count; matrix += gridDim.z) {
    float sum = 0.0f;
    for (int64_t k = 0; k < p.a.cols; ++k) {
      const float b = p.transpose_b ? value_at(p.b, matrix, col, k) : value_at(p.b, matrix, k, col);
      sum = fmaf(value_at(p.a, matrix, row, k), b, sum);
    }
    float value = p.alpha * sum;
    if (p.d.data && p.beta != 0.0f) value += p.beta * value_at(p.d, matrix, row, col);
    if (row == col && p.gamma != 0.0f) value += p.gamma;
    set_value(p.c, matrix, row, col, value);
    if (p.symmetric && row != col) set_value(p.c, matrix, col, row, value);
  }
}

}  // namespace

void naive_gemm(const Product& product, cudaStream_t stream) {
  const MatrixBatch& c = product.c;
  launch("naive_gemm", naive_gemm_kernel,
         grid_of((c.cols + kSide - 1) / kSide, (c.rows + kSide - 1) / kSide, grid_depth(c.count)),
         kSide * kSide, product, stream);
}

}  // namespace muonrt::cuda
