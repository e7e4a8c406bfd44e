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
static_assert(kChains == kWarp * kWidth, "a lane has as many chains as it reads neighbours");
static_assert(kRound <= kSumThreads, "a thread for each sum of a round");
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

__device__ inline unsigned warps() { return blockDim.x / kWarp; }
__device__ inline unsigned warp() { return threadIdx.x / kWarp; }
__device__ inline int lane() { return static_cast<int>(threadIdx.x % kWarp); }

/// The second factor is 1 but for matrices of subnormals: a multiplication saved, no bit changed.
template <int N>
__device__ inline void apply(Scale scale, Values<N>& x) {
  for (int i = 0; i < N; ++i) x.x[i] *= scale.up;
  if (scale.up2 != 1.0f)
    for (int i = 0; i < N; ++i) x.x[i] *= scale.up2;
}

/// The rows of a matrix that a block has.
struct Band {
  int64_t first, end;
};

__device__ inline Band band_of(int64_t rows) {
  const int64_t height = rows_of_band(rows), first = blockIdx.x * height;
  return {first, first + height < rows ? first + height : rows};
}

/// `count` neighbours one by one, then zeros.
template <DType kIn>
__device__ inline Raw<kWidth> gathered(const void* data, int64_t index, int count) {
  Raw<kWidth> out = {};
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const uint32_t bits = i < count ? load<1>(data, kIn, index + i).bits : 0;
    if constexpr (kIn == DType::kF32) {
      (i < 4 ? out.low : out.high).word[i % 4] = bits;
    } else {
      out.low.word[i / 2] |= bits << 16 * (i % 2);
    }
  }
  return out;
}

/// body.take<kIn>(eight) for the elements of a warp's block whose chains are the lane's, in order,
/// with zeros behind the last. Several loads go out before the first is used: 64 bytes a lane.
/// @param n  of the block's elements, which begin at `index`.
template <DType kIn, class Body>
__device__ inline void for_chains(const void* data, int64_t index, int n, Body& body) {
  constexpr int kLoads = kIn == DType::kF32 ? 2 : 4;
  int i = lane() * kWidth;
  if (aligned(data, kIn, index)) {
    for (; i + (kLoads - 1) * kChains + kWidth <= n; i += kLoads * kChains) {
      Raw<kWidth> raw[kLoads] = {};
#pragma unroll
      for (int k = 0; k < kLoads; ++k) raw[k] = load<kWidth>(data, kIn, index + i + k * kChains);
#pragma unroll
      for (int k = 0; k < kLoads; ++k) body.template take<kIn>(raw[k]);
    }
    for (; i + kWidth <= n; i += kChains)
      body.template take<kIn>(load<kWidth>(data, kIn, index + i));
  }
#pragma unroll 1
  for (; i < n; i += kChains) body.template take<kIn>(gathered<kIn>(data, index + i, n - i));
}

/// The same for a block of matrix `in`, which begins at column `begin` of the row at `row`. Other
/// dtypes than these never get here (cuda_ops).
template <class Body>
__device__ inline void for_chains(const MatrixBatch& in, int64_t row, int64_t begin, Body& body) {
  const int64_t left = in.cols - begin;
  const int n = static_cast<int>(left < kBlockElements ? left : kBlockElements);
  if (in.dtype == DType::kF32) {
    for_chains<DType::kF32>(in.data, row + begin, n, body);
  } else {
    for_chains<DType::kBF16>(in.data, row + begin, n, body);
  }
}

/// The largest |x|, its bits twice over: shifted by one, a word has no sign. Of two elements in a
/// word the upper one goes with the lower one's bits behind it, which `bits` drops.
struct LargestBody {
  uint32_t twice = 0;

  template <DType kIn>
  __device__ void take(const Raw<kWidth>& raw) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      see(raw.low.word[i] << 1);
      see(kIn == DType::kF32 ? raw.high.word[i] << 1 : raw.low.word[i] << 17);
    }
  }
  __device__ uint32_t bits(DType dtype) const {
    return dtype == DType::kF32 ? twice >> 1 : twice >> 1 & 0x7fff0000u;
  }

 private:
  __device__ void see(uint32_t x) { twice = x > twice ? x : twice; }
};

__global__ void __launch_bounds__(kSumThreads) largest_kernel(NormArguments a) {
  const Band band = band_of(a.in.rows);
  const int64_t at = blockIdx.y * a.in.stride + band.first * a.in.ld;
  LargestBody body;
  deal(warp(), warps(), static_cast<int>(band.end - band.first),
       static_cast<int>(blocks_of_row(a.in.cols)), [&](int row, int block) {
         for_chains(a.in, at + row * a.in.ld, block * kBlockElements, body);
       });
  uint32_t largest = body.bits(a.in.dtype);
  for (int width = kWarp / 2; width > 0; width /= 2) {
    const uint32_t other = __shfl_down_sync(0xffffffffu, largest, width);
    largest = other > largest ? other : largest;
  }
  if (lane() == 0) atomicMax(&a.scratch[blockIdx.y].largest, largest);
}

/// Halves a warp's chains down to one value; valid in lane 0.
__device__ inline float halved(Values<kWidth> chain) {
#pragma unroll
  for (int width = kWidth / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) chain.x[i] += chain.x[i + width];
  float sum = chain.x[0];
#pragma unroll
  for (int width = kWarp / 2; width > 0; width /= 2)
    sum += __shfl_down_sync(0xffffffffu, sum, width);
  return sum;
}

struct SquaresBody {
  Scale scale;
  Values<kWidth> chain = {};

  template <DType kIn>
  __device__ void take(const Raw<kWidth>& raw) {
    Values<kWidth> x = widen(raw, kIn);
    apply(scale, x);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) chain.x[i] += x.x[i] * x.x[i];
  }
};

/// Sum of squares of a block, by a warp; valid in lane 0.
__device__ inline float block_squares(const MatrixBatch& in, int64_t row, int64_t begin,
                                      Scale scale) {
  SquaresBody body{scale};
  for_chains(in, row, begin, body);
  return halved(body.chain);
}

/// Adds `count` values pairwise, as PairwiseSum does: the sum is where the value of index 0 was.
/// For all threads of the block.
/// @param mine  of value `index`, the next lies `stride` further; an index of `count` has none.
__device__ inline void add_pairwise(float* mine, int index, int count, int stride) {
  for (int step = 1; step < count; step *= 2) {
    if (index % (2 * step) == 0 && index + step < count) *mine += mine[step * stride];
    __syncthreads();
  }
}

/// Sum of squares of rows x blocks (at most kRound) of a matrix, whose first begins at column
/// `begin` of the row at `at`; valid in thread 0.
__device__ inline float round_squares(const MatrixBatch& in, int64_t at, int64_t begin, int rows,
                                      int blocks, Scale scale) {
  __shared__ float sums[kRound];
  deal(warp(), warps(), rows, blocks, [&](int row, int block) {
    const float sum = block_squares(in, at + row * in.ld, begin + block * kBlockElements, scale);
    if (lane() == 0) sums[row * blocks + block] = sum;
  });
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / blocks, block = thread % blocks;
  add_pairwise(sums + thread, row < rows ? block : blocks, blocks, 1);
  add_pairwise(sums + thread, row < rows && block == 0 ? row : rows, rows, blocks);
  const float sum = sums[0];
  __syncthreads();
  return sum;
}

/// A band's sum, in rounds that are whole parts of the tree: a power of two of rows, or kRound
/// blocks of a row that is longer.
__global__ void __launch_bounds__(kSumThreads, 2) squares_kernel(NormArguments a) {
  MatrixScratch& scratch = a.scratch[blockIdx.y];
  if (scratch.largest == 0 || scratch.largest >= kInfinityBits) return;
  const Scale scale = scale_for(scratch.largest);
  const Band band = band_of(a.in.rows);
  const int64_t blocks = blocks_of_row(a.in.cols);
  int height = 1;
  while (2 * height * blocks <= kRound) height *= 2;
  PairwiseSum sum;  // of rounds of rows
  for (int64_t row = band.first; row < band.end; row += height) {
    const int rows = static_cast<int>(band.end - row < height ? band.end - row : height);
    const int64_t at = blockIdx.y * a.in.stride + row * a.in.ld;
    PairwiseSum rounds;  // of a row that takes several
    for (int64_t block = 0; block < blocks; block += kRound) {
      const int width = static_cast<int>(blocks - block < kRound ? blocks - block : kRound);
      const float squares = round_squares(a.in, at, block * kBlockElements, rows, width, scale);
      if (threadIdx.x == 0) rounds.add(squares);
    }
    if (threadIdx.x == 0) sum.add(rounds.total());
  }
  if (threadIdx.x == 0) scratch.squares[blockIdx.x] = sum.total();
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

/// One value everywhere: zero for a zero matrix, NaN for one that is not finite. Whatever the
/// pattern of the input, the pack that follows then finds it in every piece.
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
  // A warp for each block of a band, which also gives each sum of a round a thread.
  const int64_t blocks = rows_of_band(a.in.rows) * blocks_of_row(a.in.cols);
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
