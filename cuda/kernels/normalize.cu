// Computes out = in / (safety x Frobenius norm). norm_rules.hpp defines how eps is used. Scaling by
// a power of two brings the largest entry into [1, 2). The squares are then summed in f32 in the
// tree of norm_tree.hpp, and every element is scaled, divided and rounded once. The host uses the
// same tree, so the results are bitwise identical. Matrices are rows x cols with any ld.
//
// A batch takes four launches. `measure` finds the largest and the smallest entry and sums unscaled
// squares. `squares` sums scaled squares of the matrices whose unscaled sum cannot be used
// (sums_unscaled in norm_tree.hpp). `measure` and `squares` read each band of a matrix once.
// `finish` combines the sums with a warp for each matrix, and `divide` writes the result.

#include "backend/norm_rules.hpp"
#include "cuda/device/launch.hpp"
#include "cuda/kernels/band_squares.cuh"
#include "cuda/kernels/extremes.hpp"
#include "cuda/kernels/findings.cuh"
#include "cuda/kernels/kernels.hpp"
#include "cuda/kernels/norm_tree.hpp"
#include "cuda/kernels/rectangle.cuh"

namespace muonrt::cuda {

namespace {

constexpr uint32_t kInfinityBits = 0x7f800000, kQuietNan = 0x7fc00000;
constexpr int64_t kSquaresBlocks = 4096;  // number of blocks of a launch that usually returns
                                          // immediately

/// The values for one matrix that one launch passes to the next. They are initially zero.
struct MatrixScratch {
  uint32_t largest;        // bits of the largest |x|
  uint32_t least_negated;  // negated bits of the smallest |x| above zero
  Scale scale;
  float divisor;
  float squares[kBands];

  /// Returns whether the matrix is divided. If not, all its elements are set to the same value.
  __device__ bool regular() const { return largest != 0 && largest < kInfinityBits; }
  /// Returns whether the squares of the unscaled elements can be used. Requires regular().
  __device__ bool unscaled() const { return sums_unscaled(largest, 0u - least_negated); }
};

struct NormArguments {
  MatrixBatch in, out;
  Normalization how;
  Findings* findings;
  MatrixScratch* scratch;
};

/// The second factor is 1 except for matrices of subnormals. Skipping a factor of 1 saves a
/// multiplication and does not change the results bitwise.
template <int N>
__device__ inline void apply(Scale scale, Values<N>& x) {
  for (int i = 0; i < N; ++i) x.x[i] *= scale.up;
  if (scale.up2 != 1.0f)
    for (int i = 0; i < N; ++i) x.x[i] *= scale.up2;
}

struct MeasureBody {
  Extremes extremes;
  Values<kWidth> chain;

  template <DType kIn>
  __device__ void take(const Raw<kWidth>& raw) {
    const Values<kWidth> x = widen(raw, kIn);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) chain.x[i] += x.x[i] * x.x[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      extremes.see<kIn>(raw.low.word[i]);
      if constexpr (kIn == DType::kF32) extremes.see<kIn>(raw.high.word[i]);
    }
  }
};

/// Returns the largest value in a warp. The result is valid in lane 0.
__device__ inline uint32_t largest_of_warp(uint32_t mine) {
#pragma unroll
  for (int width = kLanes / 2; width > 0; width /= 2) {
    const uint32_t other = __shfl_down_sync(0xffffffffu, mine, width);
    mine = other > mine ? other : mine;
  }
  return mine;
}

__global__ void __launch_bounds__(kSumThreads, 2) measure_kernel(NormArguments a) {
  MatrixScratch& scratch = a.scratch[blockIdx.y];
  MeasureBody body{Extremes(a.in.dtype), {}};
  // These are the values of the thread block. The threads first combine their values here, so that
  // each thread block needs only one atomic operation on device memory for each value.
  __shared__ uint32_t largest, least_negated;
  if (threadIdx.x == 0) largest = least_negated = 0;
  const float squares = band_squares(a.in, blockIdx.y * a.in.stride, blockIdx.x, body);
  if (threadIdx.x == 0) scratch.squares[blockIdx.x] = squares;
  const uint32_t warps_largest = largest_of_warp(body.extremes.largest(a.in.dtype));
  const uint32_t warps_least = largest_of_warp(body.extremes.least_negated(a.in.dtype));
  if (lane() == 0) {
    atomicMax(&largest, warps_largest);
    atomicMax(&least_negated, warps_least);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  atomicMax(&scratch.largest, largest);
  atomicMax(&scratch.least_negated, least_negated);
}

struct SquaresBody {
  Scale scale;
  Values<kWidth> chain;

  template <DType kIn>
  __device__ void take(const Raw<kWidth>& raw) {
    Values<kWidth> x = widen(raw, kIn);
    apply(scale, x);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) chain.x[i] += x.x[i] * x.x[i];
  }
};

/// Processes the matrices whose unscaled sums cannot be used. A thread block may process several
/// bands.
__global__ void __launch_bounds__(kSumThreads, 2) squares_kernel(NormArguments a) {
  MatrixScratch& scratch = a.scratch[blockIdx.y];
  if (!scratch.regular() || scratch.unscaled()) return;
  SquaresBody body{scale_for(scratch.largest), {}};
  const int64_t bands = bands_of(a.in.rows);
  for (int64_t band = blockIdx.x; band < bands; band += gridDim.x) {
    const float squares = band_squares(a.in, blockIdx.y * a.in.stride, band, body);
    if (threadIdx.x == 0) scratch.squares[band] = squares;
  }
}

/// Runs one warp for each matrix. Bands that do not exist have a sum of zero, so the tree is
/// complete.
__global__ void __launch_bounds__(kLanes) finish_kernel(NormArguments a) {
  static_assert(kBands == 4 * kLanes);
  MatrixScratch& scratch = a.scratch[blockIdx.x];
  if (scratch.largest == 0) {
    if (lane() == 0) note_zero_matrix(*a.findings);
    return;
  }
  if (!scratch.regular()) return;
  const float* const mine = scratch.squares + 4 * lane();
  float squares = (mine[0] + mine[1]) + (mine[2] + mine[3]);
#pragma unroll
  for (int apart = 1; apart < kLanes; apart *= 2)
    squares += __shfl_down_sync(0xffffffffu, squares, apart);
  if (lane() != 0) return;
  const Scale scale = scale_for(scratch.largest);
  if (scratch.unscaled()) squares = squares * scale.up * scale.up;  // this is exact, and up2 is 1
  scratch.scale = scale;
  scratch.divisor = norm_divisor(sqrtf(squares), a.how, scale.up, scale.up2);
}

struct DivideBody {
  MatrixBatch in, out;
  int64_t in_first, out_first;
  Scale scale;
  float divisor;

  template <int N>
  __device__ void run(int row, int col, Lanes lanes) {
    const int64_t from = in_first + row * in.ld + col;
    Values<N> x = in.dtype == DType::kF32
                      ? widen(load<N>(in.data, DType::kF32, from), DType::kF32)
                      : widen(load<N>(in.data, DType::kBF16, from), DType::kBF16);
    apply(scale, x);
    for (int i = 0; i < N; ++i) x.x[i] /= divisor;
    store(out.data, out.dtype, out_first + row * out.ld + col, x, lanes);
  }
};

/// Sets all elements to the same value: zero for a zero matrix, and NaN for a matrix with
/// non-finite elements. The pack that follows then finds a NaN in every block of the matrix,
/// wherever the non-finite element was in the input.
struct FillBody {
  MatrixBatch out;
  int64_t out_first;
  float value;

  template <int N>
  __device__ void run(int row, int col, Lanes lanes) {
    Values<N> x;
    for (int i = 0; i < N; ++i) x.x[i] = value;
    store(out.data, out.dtype, out_first + row * out.ld + col, x, lanes);
  }
};

struct DivideArguments {
  NormArguments norm;
  int rows, cols;  // size of a thread block's rectangle
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
  if (!scratch.regular()) {
    FillBody body{out, out_first, scratch.largest == 0 ? 0.0f : std::bit_cast<float>(kQuietNan)};
    return for_elements(rows, cols, fits, body);
  }
  DivideBody body{in, out, in_first, out_first, scratch.scale, scratch.divisor};
  for_elements(rows, cols, fits, body);
}

/// Returns the matrices [first, first + count) of a batch.
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
  const int64_t bands = bands_of(a.in.rows), few = (kSquaresBlocks + count - 1) / count;
  // Start a warp for each block of a band, but at most kSumThreads threads. Either way, a thread
  // block has at least one thread for each sum of a round.
  const int64_t blocks = rows_of_band(a.in.rows) * blocks_of_row(a.in.cols);
  const int threads =
      blocks * kLanes < kSumThreads ? static_cast<int>(blocks) * kLanes : kSumThreads;
  launch("measure", measure_kernel, grid_of(bands, count), threads, a, stream);
  launch("squares", squares_kernel, grid_of(bands < few ? bands : few, count), threads, a, stream);
  launch("finish", finish_kernel, grid_of(count), kLanes, a, stream);
  // A rectangle is as wide as a row, but has at most kJobElements columns, and contains about
  // kJobElements elements.
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
