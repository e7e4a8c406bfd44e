// out <- in / (safety x Frobenius norm), or as norm_rules.hpp has it with eps: the largest entry is
// brought into [1, 2) by a power of two, the squares are summed in f32 in the tree of
// norm_tree.hpp, and every element is scaled and divided, rounded once. The tree is the host's, so
// the bits are. Matrices are rows x cols, any ld. Four launches for a batch: largest, squares (a
// block each for a band of a matrix), finish (a thread for a matrix), divide.

#include "backend/norm_rules.hpp"
#include "cuda/findings.cuh"
#include "cuda/kernels.hpp"
#include "cuda/launch.hpp"
#include "cuda/norm_tree.hpp"
#include "cuda/rectangle.cuh"

namespace muonrt::cuda {

namespace {

constexpr int kWarp = 32;
constexpr int kSumThreads = 512;  // at most; the sums do not depend on their number
constexpr int kRound = 256;       // sums of blocks that are made before they are added
static_assert(kChains == kWarp, "a chain is a lane");
constexpr uint32_t kInfinityBits = 0x7f800000, kQuietNan = 0x7fc00000;

/// What the launches of a batch hand on, for one matrix.
struct MatrixScratch {
  uint32_t largest;  // bits of the largest |x|
  Scale scale;
  float divisor;
  float squares[kBands];
};

struct NormArguments {
  MatrixBatch in, out;
  Normalization how;
  Findings* findings;
  MatrixScratch* scratch;
};

__device__ inline int warps() { return static_cast<int>(blockDim.x) / kWarp; }

__device__ inline uint32_t bits_at(const MatrixBatch& m, int64_t index) {
  const uint32_t bits = load<1>(m.data, m.dtype, index).bits;
  return m.dtype == DType::kF32 ? bits : bits << 16;
}

__global__ void __launch_bounds__(kSumThreads) largest_kernel(NormArguments a) {
  const int64_t rows = rows_of_band(a.in.rows), first = blockIdx.x * rows;
  const int64_t end = first + rows < a.in.rows ? first + rows : a.in.rows;
  const int64_t matrix = blockIdx.y * a.in.stride;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t blocks = (a.in.cols + kBlockElements - 1) / kBlockElements;
  uint32_t largest = 0;
  for (int64_t unit = warp; unit < (end - first) * blocks; unit += warps()) {
    const int64_t begin = unit % blocks * kBlockElements;
    const int64_t left = a.in.cols - begin, n = left < kBlockElements ? left : kBlockElements;
    const int64_t at = matrix + (first + unit / blocks) * a.in.ld + begin;
    for (int64_t i = lane; i < n; i += kWarp) {
      const uint32_t x = bits_at(a.in, at + i) & 0x7fffffffu;
      largest = x > largest ? x : largest;
    }
  }
  for (int width = kWarp / 2; width > 0; width /= 2) {
    const uint32_t other = __shfl_down_sync(0xffffffffu, largest, width);
    largest = other > largest ? other : largest;
  }
  if (lane == 0) atomicMax(&a.scratch[blockIdx.y].largest, largest);
}

/// Sum of squares of n <= kBlockElements elements, in every lane's chain; valid in lane 0.
__device__ inline float block_squares(const MatrixBatch& m, int64_t at, int64_t n, Scale scale,
                                      int lane) {
  float chain = 0.0f;
#pragma unroll 8
  for (int64_t i = lane; i < n; i += kWarp) {
    const float y = std::bit_cast<float>(bits_at(m, at + i)) * scale.up * scale.up2;
    chain += y * y;
  }
  for (int width = kWarp / 2; width > 0; width /= 2)
    chain += __shfl_down_sync(0xffffffffu, chain, width);
  return chain;
}

/// A band's sum: rounds of kRound sums of blocks, which threads then add, each a row of its own,
/// and thread 0 adds the rows. A row longer than a round is added over several of them.
__global__ void __launch_bounds__(kSumThreads, 2) squares_kernel(NormArguments a) {
  __shared__ float block_sums[kRound], row_sums[kRound];
  MatrixScratch& scratch = a.scratch[blockIdx.y];
  if (scratch.largest == 0 || scratch.largest >= kInfinityBits) return;
  const Scale scale = scale_for(scratch.largest);
  const int64_t rows = rows_of_band(a.in.rows), first = blockIdx.x * rows;
  const int64_t end = first + rows < a.in.rows ? first + rows : a.in.rows;
  const int64_t blocks = (a.in.cols + kBlockElements - 1) / kBlockElements;
  const int64_t rows_per_round = blocks < kRound ? kRound / blocks : 1;
  const int64_t blocks_per_round = blocks < kRound ? blocks : kRound;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp, lane = thread % kWarp;
  PairwiseSum band;
  for (int64_t row = first; row < end; row += rows_per_round) {
    const int64_t height = end - row < rows_per_round ? end - row : rows_per_round;
    PairwiseSum mine;  // of row `row + thread`
    for (int64_t block = 0; block < blocks; block += blocks_per_round) {
      const int64_t width = blocks - block < blocks_per_round ? blocks - block : blocks_per_round;
      for (int64_t unit = warp; unit < height * width; unit += warps()) {
        const int64_t begin = (block + unit % width) * kBlockElements;
        const int64_t left = a.in.cols - begin, n = left < kBlockElements ? left : kBlockElements;
        const int64_t at = blockIdx.y * a.in.stride + (row + unit / width) * a.in.ld + begin;
        const float sum = block_squares(a.in, at, n, scale, lane);
        if (lane == 0) block_sums[unit] = sum;
      }
      __syncthreads();
      if (thread < height)
        for (int64_t i = 0; i < width; ++i) mine.add(block_sums[thread * width + i]);
      __syncthreads();
    }
    if (thread < height) row_sums[thread] = mine.total();
    __syncthreads();
    if (thread == 0)
      for (int64_t i = 0; i < height; ++i) band.add(row_sums[i]);
  }
  if (thread == 0) scratch.squares[blockIdx.x] = band.total();
}

__global__ void finish_kernel(NormArguments a) {
  const int64_t matrix = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (matrix >= a.in.count) return;
  MatrixScratch& scratch = a.scratch[matrix];
  if (scratch.largest == 0) return note_zero_matrix(*a.findings);
  if (scratch.largest >= kInfinityBits) return;
  PairwiseSum sum;
  for (int64_t band = 0; band < bands_of(a.in.rows); ++band) sum.add(scratch.squares[band]);
  scratch.scale = scale_for(scratch.largest);
  scratch.divisor = norm_divisor(sqrtf(sum.total()), a.how, scratch.scale.up, scratch.scale.up2);
}

struct DivideBody {
  MatrixBatch in, out;
  int64_t in_first, out_first;
  Scale scale;
  float divisor;

  template <int N>
  __device__ void run(int row, int col) {
    Values<N> x = widen(load<N>(in.data, in.dtype, in_first + row * in.ld + col), in.dtype);
    for (int i = 0; i < N; ++i) x.x[i] = x.x[i] * scale.up * scale.up2 / divisor;
    store(out.data, out.dtype, out_first + row * out.ld + col, x);
  }
};

/// One value everywhere: zero for a zero matrix, NaN for one that is not finite. Whatever the
/// pattern of the input, the pack that follows then finds it in every piece.
struct FillBody {
  MatrixBatch out;
  int64_t out_first;
  float value;

  template <int N>
  __device__ void run(int row, int col) {
    Values<N> x;
    for (int i = 0; i < N; ++i) x.x[i] = value;
    store(out.data, out.dtype, out_first + row * out.ld + col, x);
  }
};

struct DivideArguments {
  NormArguments norm;
  int rows, cols;  // of a block's rectangle
};

__global__ void __launch_bounds__(kThreads) divide_kernel(DivideArguments d) {
  const MatrixBatch &in = d.norm.in, &out = d.norm.out;
  const MatrixScratch& scratch = d.norm.scratch[blockIdx.z];
  const int64_t row = int64_t{blockIdx.x} * d.rows, col = int64_t{blockIdx.y} * d.cols;
  const int rows = static_cast<int>(in.rows - row < d.rows ? in.rows - row : d.rows);
  const int cols = static_cast<int>(in.cols - col < d.cols ? in.cols - col : d.cols);
  const int64_t in_first = blockIdx.z * in.stride + row * in.ld + col;
  const int64_t out_first = blockIdx.z * out.stride + row * out.ld + col;
  const bool fits =
      aligned(in.data, in.dtype, in_first) && aligned(out.data, out.dtype, out_first) &&
      (rows == 1 || (aligned_stride(in.dtype, in.ld) && aligned_stride(out.dtype, out.ld)));
  if (scratch.largest == 0 || scratch.largest >= kInfinityBits) {
    FillBody body{out, out_first, scratch.largest == 0 ? 0.0f : std::bit_cast<float>(kQuietNan)};
    return for_elements(rows, cols, fits, body);
  }
  DivideBody body{in, out, in_first, out_first, scratch.scale, scratch.divisor};
  for_elements(rows, cols, fits, body);
}

/// The matrices [first, first + count) of a batch.
MatrixBatch part_of(const MatrixBatch& batch, int64_t first, int64_t count) {
  MatrixBatch part = batch;
  part.data = static_cast<char*>(batch.data) + first * batch.stride * size_of(batch.dtype);
  part.count = count;
  return part;
}

void normalize_part(const NormArguments& a, cudaStream_t stream) {
  const int64_t count = a.in.count;
  MUONRT_CUDA(
      cudaMemsetAsync(a.scratch, 0, static_cast<size_t>(count) * sizeof(MatrixScratch), stream));
  const dim3 bands = grid_of(bands_of(a.in.rows), count);
  // A warp for each block of a band, which also gives each row of a round a thread.
  const int64_t blocks =
      rows_of_band(a.in.rows) * ((a.in.cols + kBlockElements - 1) / kBlockElements);
  const int threads = blocks * kWarp < kSumThreads ? static_cast<int>(blocks) * kWarp : kSumThreads;
  launch("largest", largest_kernel, bands, threads, a, stream);
  launch("squares", squares_kernel, bands, threads, a, stream);
  launch("finish", finish_kernel, grid_of((count + kWarp - 1) / kWarp), kWarp, a, stream);
  // Rectangles as wide as a row and about kJobElements large.
  const int64_t cols = a.in.cols < kJobElements ? a.in.cols : kJobElements;
  const int64_t rows = kJobElements / cols;
  launch("divide", divide_kernel,
         grid_of((a.in.rows + rows - 1) / rows, (a.in.cols + cols - 1) / cols, count), kThreads,
         DivideArguments{a, static_cast<int>(rows), static_cast<int>(cols)}, stream);
}

}  // namespace

int64_t normalize_scratch_bytes() {
  return kNormalizeBatch * static_cast<int64_t>(sizeof(MatrixScratch));
}

void normalize(const MatrixBatch& in, const MatrixBatch& out, const Normalization& how,
               Findings* findings, void* scratch, cudaStream_t stream) {
  if (in.rows == 0 || in.cols == 0) return;
  for (int64_t first = 0; first < in.count; first += kNormalizeBatch) {
    const int64_t left = in.count - first, count = left < kNormalizeBatch ? left : kNormalizeBatch;
    normalize_part({part_of(in, first, count), part_of(out, first, count), how, findings,
                    static_cast<MatrixScratch*>(scratch)},
                   stream);
  }
}

}  // namespace muonrt::cuda
