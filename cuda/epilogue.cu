// What is left of products: C = beta D + gamma I, where there is nothing to multiply (the identity
// is added in f32, before the one rounding); the mirror that makes a symmetric result of the
// vendor's symmetric to the bit; X + gamma I in place, which goes down the diagonals alone.

#include "cuda/kernels.hpp"
#include "cuda/launch.hpp"
#include "cuda/rectangle.cuh"

namespace muonrt::cuda {

namespace {

constexpr int kSide = 64;

struct ScaleAddBody {
  Product p;
  int64_t row, col, c_first, d_first;

  template <int N>
  __device__ void run(int r, int c, Lanes lanes) {
    Values<N> x = {};
    if (p.d.data && p.beta != 0.0f) {
      x = widen(load<N>(p.d.data, p.d.dtype, d_first + r * p.d.ld + c), p.d.dtype);
      for (int i = 0; i < N; ++i) x.x[i] *= p.beta;
    }
    const int64_t to_diagonal = row + r - (col + c);
    for (int i = 0; i < N; ++i)
      if (i == to_diagonal) x.x[i] += p.gamma;
    store(p.c.data, p.c.dtype, c_first + r * p.c.ld + c, x, lanes);
  }
};

__global__ void __launch_bounds__(kThreads) scale_add_kernel(Product p) {
  const int64_t row = int64_t{blockIdx.y} * kSide, col = int64_t{blockIdx.x} * kSide;
  const int rows = static_cast<int>(p.c.rows - row < kSide ? p.c.rows - row : kSide);
  const int cols = static_cast<int>(p.c.cols - col < kSide ? p.c.cols - col : kSide);
  for (int64_t matrix = blockIdx.z; matrix < p.c.count; matrix += gridDim.z) {
    const int64_t c_first = matrix * p.c.stride + row * p.c.ld + col;
    const int64_t d_first = matrix * p.d.stride + row * p.d.ld + col;
    const bool fits = aligned(p.c.data, p.c.dtype, c_first) && aligned_stride(p.c.dtype, p.c.ld) &&
                      aligned(p.d.data, p.d.dtype, d_first) && aligned_stride(p.d.dtype, p.d.ld);
    ScaleAddBody body{p, row, col, c_first, d_first};
    for_elements(rows, cols, fits, body);
  }
}

/// A block takes a square on or above the diagonal: element bits of C as they lie.
__global__ void __launch_bounds__(kThreads) mirror_kernel(MatrixBatch m) {
  __shared__ uint32_t tile[kSide][kSide + 1];
  if (blockIdx.x < blockIdx.y) return;
  const int64_t row = int64_t{blockIdx.y} * kSide, col = int64_t{blockIdx.x} * kSide;
  const int rows = static_cast<int>(m.rows - row < kSide ? m.rows - row : kSide);
  const int cols = static_cast<int>(m.cols - col < kSide ? m.cols - col : kSide);
  const int across = static_cast<int>(threadIdx.x) % kSide;
  const int down = static_cast<int>(threadIdx.x) / kSide;
  for (int64_t matrix = blockIdx.z; matrix < m.count; matrix += gridDim.z) {
    const int64_t first = matrix * m.stride;
    for (int r = down; r < rows && across < cols; r += kThreads / kSide)
      tile[r][across] = load<1>(m.data, m.dtype, first + (row + r) * m.ld + col + across).bits;
    __syncthreads();
    for (int c = down; c < cols && across < rows; c += kThreads / kSide) {
      if (row + across >= col + c) continue;  // on or below the diagonal: not mirrored
      const int64_t to = first + (col + c) * m.ld + row + across;
      if (m.dtype == DType::kF32) {
        static_cast<uint32_t*>(m.data)[to] = tile[across][c];
      } else {
        static_cast<uint16_t*>(m.data)[to] = static_cast<uint16_t>(tile[across][c]);
      }
    }
    __syncthreads();
  }
}

struct Diagonals {
  MatrixBatch m;
  float gamma;
};

__global__ void __launch_bounds__(kThreads) add_identity_kernel(Diagonals d) {
  const MatrixBatch& m = d.m;
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= m.rows) return;
  for (int64_t matrix = blockIdx.y; matrix < m.count; matrix += gridDim.y) {
    const int64_t at = matrix * m.stride + row * (m.ld + 1);
    Values<1> x = widen(load<1>(m.data, m.dtype, at), m.dtype);
    x.x[0] += d.gamma;
    store(m.data, m.dtype, at, x);
  }
}

dim3 squares_of(const MatrixBatch& m) {
  return grid_of((m.cols + kSide - 1) / kSide, (m.rows + kSide - 1) / kSide, grid_depth(m.count));
}

}  // namespace

void scale_add_identity(const Product& product, cudaStream_t stream) {
  launch("scale_add_identity", scale_add_kernel, squares_of(product.c), kThreads, product, stream);
}

void mirror(const MatrixBatch& c, cudaStream_t stream) {
  launch("mirror", mirror_kernel, squares_of(c), kThreads, c, stream);
}

void add_identity(const MatrixBatch& x, float gamma, cudaStream_t stream) {
  const dim3 grid = grid_of((x.rows + kThreads - 1) / kThreads, grid_depth(x.count));
  launch("add_identity", add_identity_kernel, grid, kThreads, Diagonals{x, gamma}, stream);
}

}  // namespace muonrt::cuda
