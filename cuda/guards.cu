// The exact sum of squares of the gradients, the factor of a step in its tables, and QK-clip's row
// factors. Formulas: backend/guards.hpp, backend/qk_clip.hpp.

#include "cuda/findings.cuh"
#include "cuda/kernels.hpp"
#include "cuda/launch.hpp"
#include "cuda/param_walk.cuh"
#include "cuda/rectangle.cuh"

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

/// A sum of 64 bits in shared memory, whose atomic additions the hardware has for 32 bits alone.
struct SplitSum {
  uint32_t low, high;
  /// @param value  of 32 bits, or zero.
  __device__ void add(uint32_t value) {
    if (value != 0 && atomicAdd(&low, value) > ~value) atomicAdd(&high, 1u);
  }
  __device__ int64_t whole() const { return static_cast<int64_t>(uint64_t{high} << 32 | low); }
};

struct SquaresBody {
  const void* grad;
  DType dtype;
  int64_t first;
  SplitSum* sums;

  template <int N>
  __device__ void run(int, int col, Lanes) {
    const Values<N> g = widen(load<N>(grad, dtype, first + col), dtype);
    for (int i = 0; i < N; ++i) {
      const SquareTerm term = square_term(g.x[i]);
      sums[term.word].add(static_cast<uint32_t>(term.low));
      sums[term.word + 1].add(static_cast<uint32_t>(term.high));
    }
  }
};

struct SquaresPart {
  SplitSum* sums;  // of the block
  __device__ void operator()(const ParamView& view, int32_t, int64_t first, int n) const {
    SquaresBody body{view.grad, view.grad_dtype, first, sums};
    for_elements(1, n, aligned(view.grad, view.grad_dtype, first), body);
  }
};

__global__ void __launch_bounds__(kThreads) sum_squares_kernel(SquaresArguments a) {
  __shared__ SplitSum sums[kNormWords];
  const int thread = static_cast<int>(threadIdx.x);
  for (int word = thread; word < kNormWords; word += kThreads) sums[word] = {0, 0};
  __syncthreads();
  for_each_part<true>(a.list, a.count, a.params, SquaresPart{sums});
  __syncthreads();
  for (int word = thread; word < kNormWords; word += kThreads)
    add_to(a.sums + word, sums[word].whole());
}

struct ScaleArguments {
  GradientFactors factors;
  double clip_norm;
  const int64_t* sums;
  GradientTables tables;
  Findings* findings;
  double* norm;
};

__global__ void __launch_bounds__(kThreads) scale_gradients_kernel(ScaleArguments a) {
  __shared__ GradientScale shared;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) shared = gradient_scale(a.factors, a.clip_norm, a.sums);
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

void scale_gradients(const GradientFactors& factors, double clip_norm, const int64_t* sums,
                     const GradientTables& tables, Findings* findings, double* norm,
                     cudaStream_t stream) {
  launch("scale_gradients", scale_gradients_kernel, grid_of(1), kThreads,
         ScaleArguments{factors, clip_norm, sums, tables, findings, norm}, stream);
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
