// Passes that complete products. The first pass computes C = beta D + gamma I if there is nothing
// to multiply. It adds gamma I in f32, so each element is rounded only once. The second pass,
// `mirror`, makes a symmetric result of cuBLASLt bitwise symmetric. The third pass computes X +
// gamma I in place, and reads only the diagonal.

#include "cuda/device/launch.hpp"
#include "cuda/kernels/kernels.hpp"
#include "cuda/kernels/rectangle.cuh"
#include "cuda/kernels/transpose.cuh"

namespace muonrt::cuda {

namespace {

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

/// Processes two neighboring squares on or above the diagonal with vector accesses. The elements
/// have two bytes. In a square on the diagonal, elements below the diagonal are also stored.
__device__ inline void mirror_halves(Tile& tile, const TransposedTile<false>& c, bool on_diagonal) {
  CopyBits how{HalfBits(
      DType::kF16, DType::kBF16)};  // NaN is preserved; the check for non-finite values is not used
  fill_halves(tile, c, how);
  __syncthreads();
  const FlushedTile mine;
  char* const first = c.to.at(mine.col, mine.row, CopyBits::kFrom);
  const int64_t stride = c.to.ld * size_of(CopyBits::kFrom);
  flush(tile, c, mine, [&](int t, int k, const Raw<kWidth>& raw) {
    char* const at = first + (t * kSide + k * 4) * stride;
    const int below = on_diagonal && t == 0 ? mine.col + k * 4 - mine.row : kWidth;
    if (below >= kWidth) return store_vec16(at, raw.low);
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      if (i < below) reinterpret_cast<uint16_t*>(at)[i] = half_of(raw, i);
  });
}

/// Processes one square element by element.
__device__ inline void mirror_elements(Tile& tile, const TransposedTile<false>& c,
                                       bool on_diagonal) {
  const int across = static_cast<int>(threadIdx.x % kSide);
  const int down = static_cast<int>(threadIdx.x / kSide);
  const int cols = c.cols < kSide ? c.cols : kSide;
  for (int row = down; row < c.rows && across < cols; row += kThreads / kSide)
    tile.bits[row][across] = load<1>(c.from.data, c.from.dtype, c.from.index(row, across)).bits;
  __syncthreads();
  for (int col = down; col < cols && across < c.rows; col += kThreads / kSide)
    if (!on_diagonal || across < col)
      store_raw(c.to.data, c.to.dtype, c.to.index(col, across), Raw<1>{tile.bits[across][col]});
}

/// Like mirror_halves, but for any size and alignment. The elements have two bytes if `kHalves` is
/// true, and four bytes if it is false.
template <bool kHalves>
__device__ inline void mirror_squares(Tile& tile, const TransposedTile<false>& c,
                                      bool on_diagonal) {
  const bool vectors = !kHalves && vectors_cross(c);
  for (int t = 0; c.has(t); ++t) {
    if (t > 0) __syncthreads();  // other threads may still read the previous square
    const bool diagonal = on_diagonal && t == 0;
    if (vectors && !diagonal) {
      WordBits any;
      transpose_words(tile, c.of(t), any);
    } else {
      mirror_elements(tile, c.of(t), diagonal);
    }
  }
}

/// A thread block processes two neighboring squares in a row of squares, but skips squares below
/// the diagonal. No thread block overwrites an element that another block reads.
template <bool kHalves>
__global__ void __launch_bounds__(kThreads) mirror_kernel(MatrixBatch m) {
  __shared__ Tile tile;
  const int64_t row = int64_t{blockIdx.y} * kSide, begin = int64_t{blockIdx.x} * 2 * kSide;
  const int64_t end = begin + 2 * kSide < m.cols ? begin + 2 * kSide : m.cols;
  const int64_t col = begin < row ? row : begin;
  if (col >= end) return;
  const int rows = static_cast<int>(m.rows - row < kSide ? m.rows - row : kSide);
  for (int64_t matrix = blockIdx.z; matrix < m.count; matrix += gridDim.z) {
    const Rows all{m.data, m.dtype, matrix * m.stride, m.ld};
    const TransposedTile<false> c{all.from(static_cast<int>(row), static_cast<int>(col)),
                                  all.from(static_cast<int>(col), static_cast<int>(row)), rows,
                                  static_cast<int>(end - col)};
    if (kHalves && vectors_cross(c)) {
      mirror_halves(tile, c, row == col);
    } else {
      mirror_squares<kHalves>(tile, c, row == col);
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
  const dim3 grid = grid_of((c.cols + 2 * kSide - 1) / (2 * kSide), (c.rows + kSide - 1) / kSide,
                            grid_depth(c.count));
  const auto kernel = c.dtype == DType::kF32 ? mirror_kernel<false> : mirror_kernel<true>;
  launch("mirror", kernel, grid, kThreads, c, stream);
}

void add_identity(const MatrixBatch& x, float gamma, cudaStream_t stream) {
  const dim3 grid = grid_of((x.rows + kThreads - 1) / kThreads, grid_depth(x.count));
  launch("add_identity", add_identity_kernel, grid, kThreads, Diagonals{x, gamma}, stream);
}

}  // namespace muonrt::cuda
