// Computes the exact sum of squares of the gradients, the clipping factor in a step's tables, and
// QK-clip's row factors. The formulas are in backend/clipping.hpp and backend/qk_clip.hpp.

#include "cuda/device/launch.hpp"
#include "cuda/kernels/findings.cuh"
#include "cuda/kernels/kernels.hpp"
#include "cuda/kernels/param_walk.cuh"
#include "cuda/kernels/rectangle.cuh"

namespace muonrt::cuda {

namespace {

struct SquaresArguments {
  const int32_t* list;
  int64_t count;
  const ParamView* params;
  int64_t* sums;
};

__device__ inline void add_to(int64_t* sum, int64_t value) {
  if (value != 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(value));
}

/// A 64-bit sum in shared memory, for hardware that has only 32-bit atomic additions.
struct SplitSum {
  uint32_t low, high;
  __device__ void add(uint64_t value) {
    const auto lower = static_cast<uint32_t>(value);
    uint32_t upper = static_cast<uint32_t>(value >> 32);
    if (lower != 0 && atomicAdd(&low, lower) > ~lower) ++upper;
    if (upper != 0) atomicAdd(&high, upper);
  }
  __device__ int64_t whole() const { return static_cast<int64_t>(uint64_t{high} << 32 | low); }
};

/// Each lane of a warp keeps sums for kExponents neighboring exponents (a window), because most
/// gradients of one part have similar magnitudes. Squares whose exponents are outside of the window
/// are added to the thread block's sums immediately.
constexpr int kExponents = 16, kWarp = 32, kWarps = kThreads / kWarp;

struct LaneSum {
  uint32_t low, high;
};
using Window = LaneSum[kExponents][kWarp];

/// Distance from the lowest exponent of a window to the largest exponent of a sample.
constexpr uint32_t kBelow = 12;
/// Number of elements that a lane can add before its 24-bit sums overflow. A lane gets at most
/// kPerPart elements of one part, because first the vectors and then the remaining elements are
/// distributed to kThreads threads.
constexpr int kMaxElements = 255, kPerPart = static_cast<int>(kJobElements) / kThreads + 1;

struct SquaresBody {
  const void* grad;
  DType dtype;
  int64_t first;
  SplitSum* sums;
  LaneSum* window;  // this lane's sums; the sum for the next exponent is kWarp further
  uint32_t lowest;  // lowest exponent of the window, above zero

  template <int N>
  __device__ void run(int, int col, Lanes) {
    const Values<N> g = widen(load<N>(grad, dtype, first + col), dtype);
    for (int i = 0; i < N; ++i) {
      const uint32_t size = std::bit_cast<uint32_t>(g.x[i]) & 0x7fffffffu;
      const uint32_t place = (size >> 23) - lowest;
      if (place < kExponents) {
        const uint64_t mantissa = (size & 0x7fffffu) | 0x800000u, square = mantissa * mantissa;
        LaneSum& sum = window[place * kWarp];
        sum = {sum.low + (static_cast<uint32_t>(square) & 0xffffffu),
               sum.high + static_cast<uint32_t>(square >> 24)};
      } else if (size != 0) {
        const SquareTerm term = square_term(g.x[i]);
        sums[term.word].add(static_cast<uint64_t>(term.low));
        sums[term.word + 1].add(static_cast<uint64_t>(term.high));
      }
    }
  }
};

/// The sums of a thread block, with a window for each lane.
class BlockSquares {
 public:
  __device__ BlockSquares(SplitSum* sums, Window* windows)
      : sums_(sums), window_(windows[threadIdx.x / kWarp]) {
    clear();
  }

  /// Adds the squares of a part. All threads of the thread block must call this function.
  __device__ void operator()(const ParamView& view, int32_t, int64_t first, int n) {
    place_window(view, first, n);
    SquaresBody body{view.grad, view.grad_dtype, first, sums_, window_[0] + lane(), lowest_};
    for_elements(1, n, aligned(view.grad, view.grad_dtype, first), body);
  }

  /// Adds the windows to the thread block's sums. Each lane adds one word for one exponent.
  __device__ void flush() {
    __syncwarp();
    const int exponent = lane() % kExponents;
    const bool high = lane() >= kExponents;
    uint64_t sum = 0;
    for (int i = 0; i < kWarp; ++i) {
      const LaneSum& one = window_[exponent][(i + lane()) % kWarp];
      sum += high ? one.high : one.low;
    }
    if (sum != 0) sums_[2 * (lowest_ + exponent) + high].add(sum);
    __syncwarp();
    clear();
  }

 private:
  static_assert(2 * kExponents == kWarp);
  __device__ static int lane() { return static_cast<int>(threadIdx.x % kWarp); }
  __device__ void clear() {
    for (auto& of_exponent : window_) of_exponent[lane()] = {0, 0};
    elements_ = 0;
  }

  /// Moves the window if the first elements of the lanes are outside of it. The window is the same
  /// in all lanes of a warp.
  __device__ void place_window(const ParamView& view, int64_t first, int n) {
    const int at = static_cast<int>(threadIdx.x) * kWidth;
    uint32_t top = 0;
    if (at < n) {
      const float x = widen(load<1>(view.grad, view.grad_dtype, first + at), view.grad_dtype).x[0];
      top = std::bit_cast<uint32_t>(x) >> 23 & 0xffu;
      top = top < 0xffu ? top : 0;
    }
#pragma unroll
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
      const uint32_t other = __shfl_xor_sync(0xffffffffu, top, apart);
      top = other > top ? other : top;
    }
    const bool lies = top == 0 || (top >= lowest_ + kBelow - 3 && top <= lowest_ + kBelow + 1);
    if (!lies || elements_ + kPerPart > kMaxElements) flush();
    if (!lies) {
      lowest_ = top > kBelow ? top - kBelow : 1;
      const uint32_t last = 0xff - kExponents;  // infinities are outside of every window
      lowest_ = lowest_ < last ? lowest_ : last;
    }
    elements_ += kPerPart;
  }

  SplitSum* sums_;
  Window& window_;
  uint32_t lowest_ = 1;
  int elements_ = 0;
};

__global__ void __launch_bounds__(kThreads) sum_squares_kernel(SquaresArguments a) {
  __shared__ SplitSum sums[kNormWords];
  __shared__ Window windows[kWarps];
  const int thread = static_cast<int>(threadIdx.x);
  for (int word = thread; word < kNormWords; word += kThreads) sums[word] = {0, 0};
  BlockSquares squares(sums, windows);
  __syncthreads();
  for_each_stretch<GradientElements>(a.list, a.count, a.params, squares);
  squares.flush();
  __syncthreads();
  for (int word = thread; word < kNormWords; word += kThreads)
    add_to(a.sums + word, sums[word].whole());
}

struct ScaleArguments {
  GradientFactors factors;
  NormClip clip;
  GradientTables tables;
  Findings* findings;
  double* norm;
};

__global__ void __launch_bounds__(kThreads) scale_gradients_kernel(ScaleArguments a) {
  __shared__ GradientScale shared;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) shared = gradient_scale(a.factors, a.clip);
  __syncthreads();
  const GradientScale scale = shared;
  for (int64_t i = thread; i < a.tables.param_count; i += kThreads)
    a.tables.params[i].grad_scale = scale.factor;
  for (int64_t i = thread; i < a.tables.adam_count; i += kThreads)
    a.tables.adam[i].grad_scale = scale.factor;
  for (int64_t i = thread; i < a.tables.group_count; i += kThreads)
    a.tables.groups[i].grad_scale = scale.factor;
  if (thread == 0) {
    if (!scale.well) note_nonfinite(*a.findings);
    a.findings->factor = scale.seen;
    *a.norm = scale.norm;
  }
}

struct LogitArguments {
  const float* from;
  float* to;
  int64_t count;
};

__global__ void __launch_bounds__(kThreads) take_logits_kernel(LogitArguments a) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < a.count) a.to[i] = a.from ? a.from[i] : std::bit_cast<float>(0xff800000u);
}

struct ClipArguments {
  QkClip clip;
  Findings* findings;
};

__global__ void __launch_bounds__(kThreads) clip_heads_kernel(ClipArguments a) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < a.clip.heads && qk_bad_logit(a.clip.logits[i])) note_nonfinite(*a.findings);
  if (i < a.clip.rows) a.clip.factors[i] = qk_row_factor(a.clip, i);
}

int64_t blocks_for(int64_t elements) { return (elements + kThreads - 1) / kThreads; }

}  // namespace

void sum_squares(const int32_t* list, int64_t count, const ParamView* params, int64_t* sums,
                 int blocks, cudaStream_t stream) {
  if (count == 0) return;
  launch("sum_squares", sum_squares_kernel, grid_of(blocks), kThreads,
         SquaresArguments{list, count, params, sums}, stream);
}

void scale_gradients(const GradientFactors& factors, const NormClip& clip,
                     const GradientTables& tables, Findings* findings, double* norm,
                     cudaStream_t stream) {
  launch("scale_gradients", scale_gradients_kernel, grid_of(1), kThreads,
         ScaleArguments{factors, clip, tables, findings, norm}, stream);
}

void take_logits(const float* from, float* to, int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  launch("take_logits", take_logits_kernel, grid_of(blocks_for(count)), kThreads,
         LogitArguments{from, to, count}, stream);
}

void clip_heads(const QkClip& clip, Findings* findings, cudaStream_t stream) {
  const int64_t elements = clip.rows < clip.heads ? clip.heads : clip.rows;
  launch("clip_heads", clip_heads_kernel, grid_of(blocks_for(elements)), kThreads,
         ClipArguments{clip, findings}, stream);
}

}  // namespace muonrt::cuda
