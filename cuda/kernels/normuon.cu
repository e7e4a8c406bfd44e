// Applies NorMuon to whole matrices in their stored form. Up to kStates matrices of a batch take
// three launches. The first launch computes the mean squares of the neurons (rows or columns). The
// second launch computes the factors of the neurons from the second moments or with another
// NeuronRule. The third launch multiplies the neurons by their factors. The formulas and the order
// of sums are in backend/normuon.hpp. Matrices of inactive parameters are skipped.

#include <algorithm>

#include "cuda/device/launch.hpp"
#include "cuda/kernels/elements.hpp"
#include "cuda/kernels/jobs.hpp"
#include "cuda/kernels/kernels.hpp"
#include "cuda/kernels/rectangle.cuh"

namespace muonrt::cuda {

namespace {

/// Maximum number of matrices in a launch. This number of states fits into the launch's arguments.
constexpr int64_t kStates = 64;

struct NormuonArguments {
  MatrixBatch matrices;
  StepTables tables;
  NormuonState states[kStates];

  __device__ bool active(int64_t i) const {
    const NormuonState& s = states[i];
    return s.neurons > 0 && (s.rule != NeuronRule::kNormuon || tables.params[s.param].active != 0);
  }
};
static_assert(sizeof(NormuonArguments) <= 4096);

/// Loads `count` elements, at most kWidth, starting with `index`. The remaining elements are zeros,
/// which do not change a sum of squares.
template <DType kIn>
__device__ inline Values<kWidth> load_some(const void* data, int64_t index, int64_t count,
                                           bool vectors) {
  if (vectors && count >= kWidth) return widen(load<kWidth>(data, kIn, index), kIn);
  Values<kWidth> out;
  for (int i = 0; i < kWidth; ++i)
    out.x[i] = i < count ? widen(load<1>(data, kIn, index + i), kIn).x[0] : 0.0f;
  return out;
}

__device__ inline void add_squares(Values<kWidth>& chains, const Values<kWidth>& x) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) chains.x[i] += x.x[i] * x.x[i];
}

// number of neighboring lanes that sum a row, each with kWidth chains
constexpr int kLanesOfRow = kNeuronChains / kWidth;
constexpr int kSumThreads = 64, kRowsOfBlock = kSumThreads / kLanesOfRow;
constexpr int kColumnGroups = 8, kColumnsOfBlock = kColumnGroups * kWidth;

/// Returns the sum of a row's squares. The result is valid in the first of the lanes that sum the
/// row.
template <DType kIn>
__device__ inline float row_squares(const MatrixBatch& m, int64_t first, int64_t cols) {
  const bool vectors = aligned(m.data, kIn, first);
  constexpr int kAhead = kIn == DType::kF32 ? 4 : 8;  // loads in flight
  const int64_t lane = threadIdx.x % kLanesOfRow, step = kNeuronChains;
  Values<kWidth> chains = {};
  int64_t i = lane * kWidth;
  if (vectors) {
    for (; i + (kAhead - 1) * step + kWidth <= cols; i += kAhead * step) {
      Raw<kWidth> raw[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) raw[k] = load<kWidth>(m.data, kIn, first + i + k * step);
#pragma unroll
      for (int k = 0; k < kAhead; ++k) add_squares(chains, widen(raw[k], kIn));
    }
  }
  for (; i < cols; i += step)
    add_squares(chains, load_some<kIn>(m.data, first + i, cols - i, vectors));
#pragma unroll
  for (int apart = kLanesOfRow / 2; apart > 0; apart /= 2)
    for (float& chain : chains.x) chain += __shfl_down_sync(0xffffffffu, chain, apart);
#pragma unroll
  for (int half = kWidth / 2; half > 0; half /= 2)
    for (int c = 0; c < half; ++c) chains.x[c] += chains.x[c + half];
  return chains.x[0];
}

/// Stores the mean squares of rows in the array of factors. Four neighboring threads compute one
/// mean square.
__global__ void __launch_bounds__(kSumThreads, 16) normuon_rows_kernel(NormuonArguments a) {
  const int64_t matrix = blockIdx.y;
  const NormuonState& s = a.states[matrix];
  const MatrixBatch& m = a.matrices;
  if (!a.active(matrix) || !s.stored_rows) return;
  const int64_t row = int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kLanesOfRow;
  const int64_t first = matrix * m.stride + row * m.ld, cols = row < s.neurons ? m.cols : 0;
  const float sum = m.dtype == DType::kF32    ? row_squares<DType::kF32>(m, first, cols)
                    : m.dtype == DType::kBF16 ? row_squares<DType::kBF16>(m, first, cols)
                                              : row_squares<DType::kF16>(m, first, cols);
  if (cols > 0 && threadIdx.x % kLanesOfRow == 0) s.factors[row] = sum / static_cast<float>(m.cols);
}

/// Returns the sums of one chain in kWidth neighboring columns.
template <DType kIn>
__device__ inline Values<kWidth> column_squares(const MatrixBatch& m, int64_t first, int64_t count,
                                                bool vectors) {
  constexpr int kAhead = 4;  // loads in flight
  Values<kWidth> chains = {};
  int64_t row = threadIdx.x / kColumnGroups;
  if (vectors && count >= kWidth) {
    for (; row + (kAhead - 1) * kNeuronChains < m.rows; row += kAhead * kNeuronChains) {
      Raw<kWidth> raw[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        raw[k] = load<kWidth>(m.data, kIn, first + (row + k * kNeuronChains) * m.ld);
#pragma unroll
      for (int k = 0; k < kAhead; ++k) add_squares(chains, widen(raw[k], kIn));
    }
  }
  for (; row < m.rows; row += kNeuronChains)
    add_squares(chains, load_some<kIn>(m.data, first + row * m.ld, count, vectors));
  return chains;
}

/// Like normuon_rows_kernel, but for columns. A thread sums one chain of each of eight columns.
__global__ void __launch_bounds__(kThreads) normuon_columns_kernel(NormuonArguments a) {
  static_assert(kColumnGroups * kNeuronChains == kThreads);
  __shared__ float sums[kNeuronChains][kColumnsOfBlock + 1];
  const int64_t matrix = blockIdx.y;
  const NormuonState& s = a.states[matrix];
  const MatrixBatch& m = a.matrices;
  if (!a.active(matrix) || s.stored_rows) return;
  const int thread = static_cast<int>(threadIdx.x), mine = thread % kColumnGroups * kWidth;
  const int64_t begin = int64_t{blockIdx.x} * kColumnsOfBlock;
  const int64_t first = matrix * m.stride + begin + mine, count = m.cols - begin - mine;
  const bool vectors = aligned(m.data, m.dtype, first) && aligned_stride(m.dtype, m.ld);
  const Values<kWidth> chains =
      m.dtype == DType::kF32    ? column_squares<DType::kF32>(m, first, count, vectors)
      : m.dtype == DType::kBF16 ? column_squares<DType::kBF16>(m, first, count, vectors)
                                : column_squares<DType::kF16>(m, first, count, vectors);
  for (int i = 0; i < kWidth; ++i) sums[thread / kColumnGroups][mine + i] = chains.x[i];
  __syncthreads();
  if (thread >= kColumnsOfBlock || begin + thread >= s.neurons) return;
  float column[kNeuronChains];
#pragma unroll
  for (int i = 0; i < kNeuronChains; ++i) column[i] = sums[i][thread];
#pragma unroll
  for (int half = kNeuronChains / 2; half > 0; half /= 2)
#pragma unroll
    // The bound is a constant, because otherwise the compiler would put the chains in local memory.
    for (int i = 0; i < kNeuronChains / 2; ++i)
      if (i < half) column[i] += column[i + half];
  s.factors[begin + thread] = column[0] / static_cast<float>(m.rows);
}

constexpr int kFactorThreads = 512, kWindow = 2 * kFactorThreads;

/// Adds the elements of a lane's chain in order.
template <class T>
__device__ inline void add_chain(double& sum, const T (&values)[kWindow], int count) {
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x % kNeuronChains); i < count; i += kNeuronChains)
    sum += static_cast<double>(values[i]);
}

/// Adds the upper half of a warp's chains to the lower half until one sum is left, which is valid
/// in the warp's first lane.
__device__ inline double folded(double sum) {
#pragma unroll
  for (int half = kNeuronChains / 2; half > 0; half /= 2) {
    const auto bits = std::bit_cast<uint64_t>(sum);
    const uint64_t low = __shfl_down_sync(0xffffffffu, static_cast<unsigned>(bits), half);
    const uint64_t high = __shfl_down_sync(0xffffffffu, static_cast<unsigned>(bits >> 32), half);
    sum += std::bit_cast<double>(high << 32 | low);
  }
  return sum;
}

/// Runs one thread block for each matrix. Divides the neurons into windows. For each window, the
/// threads first compute moments and factors. Then each lane of the first two warps adds one chain
/// of each sum over the neurons.
__global__ void __launch_bounds__(kFactorThreads) normuon_factors_kernel(NormuonArguments a) {
  __shared__ float means[kWindow];
  __shared__ double scaled[kWindow];
  __shared__ double sums[2];
  const NormuonState& s = a.states[blockIdx.x];
  if (!a.active(blockIdx.x)) return;
  const int thread = static_cast<int>(threadIdx.x);
  const bool moments = s.rule == NeuronRule::kNormuon;
  const float beta2 = moments ? a.tables.groups[s.group].normuon_beta2 : 0.0f;
  double sum = 0.0;
  for (int64_t begin = 0; begin < s.neurons; begin += kWindow) {
    const int count = static_cast<int>(s.neurons - begin < kWindow ? s.neurons - begin : kWindow);
    if (begin > 0) __syncthreads();  // other threads may still read the previous window
    for (int i = thread; i < count; i += kFactorThreads) {
      const float mean = s.factors[begin + i];
      const float factor = neuron_factor(s, begin + i, mean, beta2);
      s.factors[begin + i] = factor;
      const double f = static_cast<double>(factor);
      means[i] = mean;
      scaled[i] = static_cast<double>(mean) * f * f;
    }
    __syncthreads();
    if (thread < kNeuronChains) {
      add_chain(sum, means, count);
    } else if (thread < 2 * kNeuronChains) {
      add_chain(sum, scaled, count);
    }
  }
  if (thread < 2 * kNeuronChains) {
    sum = folded(sum);
    if (thread % kNeuronChains == 0) sums[thread / kNeuronChains] = sum;
  }
  __syncthreads();
  const int64_t length = s.stored_rows ? a.matrices.cols : a.matrices.rows;
  const float restore = matrix_factor(s, sums[0], sums[1], length);
  for (int64_t neuron = thread; neuron < s.neurons; neuron += kFactorThreads)
    s.factors[neuron] *= restore;
}

struct ScaleArguments {
  NormuonArguments all;
  int rows, cols;  // size of a thread block's rectangle
};

struct ScaleBody {
  MatrixBatch m;
  const float* factors;  // factors of the rectangle's rows or columns
  int64_t first;
  bool by_rows;

  template <int N>
  __device__ void run(int row, int col, Lanes lanes) {
    const int64_t at = first + row * m.ld + col;
    Values<N> x = widen(load<N>(m.data, m.dtype, at), m.dtype);
    if (by_rows) {
      const float factor = factors[row];
      for (int i = 0; i < N; ++i) x.x[i] *= factor;
    } else {
      for (int i = 0; i < N; ++i) x.x[i] *= factors[col + i];
    }
    store(m.data, m.dtype, at, x, lanes);
  }
};

__global__ void __launch_bounds__(kThreads) normuon_scale_kernel(ScaleArguments s) {
  const int64_t matrix = blockIdx.z;
  const MatrixBatch& m = s.all.matrices;
  if (!s.all.active(matrix)) return;
  const NormuonState& state = s.all.states[matrix];
  const int64_t row = int64_t{blockIdx.x} * s.rows, col = int64_t{blockIdx.y} * s.cols;
  const int rows = static_cast<int>(m.rows - row < s.rows ? m.rows - row : s.rows);
  const int cols = static_cast<int>(m.cols - col < s.cols ? m.cols - col : s.cols);
  const int64_t first = matrix * m.stride + row * m.ld + col;
  const bool fits = aligned(m.data, m.dtype, first) && (rows == 1 || aligned_stride(m.dtype, m.ld));
  ScaleBody body{m, state.factors + (state.stored_rows ? row : col), first, state.stored_rows};
  for_elements(rows, cols, fits, body);
}

struct CommitArguments {
  const ParamView* params;
  CommitCondition condition;
  NormuonState states[kStates];
};
static_assert(sizeof(CommitArguments) <= 4096 && sizeof(ScaleArguments) <= 4096);

__global__ void __launch_bounds__(kThreads) commit_normuon_kernel(CommitArguments a) {
  const NormuonState& s = a.states[blockIdx.y];
  const int64_t neuron = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (neuron >= s.neurons || !a.condition.passes() || !a.params[s.param].active) return;
  s.moments[neuron] = s.staged[neuron];
}

int64_t blocks_for(int64_t elements, int64_t each) { return (elements + each - 1) / each; }

/// Copies `states`, at most kStates, to `to`.
/// @return  the largest number of neurons of a matrix.
int64_t copy_states(std::span<const NormuonState> states, NormuonState (&to)[kStates]) {
  int64_t neurons = 0;
  std::copy(states.begin(), states.end(), to);
  for (const NormuonState& state : states) neurons = std::max(neurons, state.neurons);
  return neurons;
}

void normuon_part(const NormuonArguments& a, cudaStream_t stream) {
  const MatrixBatch& m = a.matrices;
  const auto any = [&](bool rows) {
    return std::any_of(a.states, a.states + m.count, [&](const NormuonState& s) {
      return s.neurons > 0 && s.stored_rows == rows;
    });
  };
  if (any(true))
    launch("normuon rows", normuon_rows_kernel, grid_of(blocks_for(m.rows, kRowsOfBlock), m.count),
           kSumThreads, a, stream);
  if (any(false))
    launch("normuon columns", normuon_columns_kernel,
           grid_of(blocks_for(m.cols, kColumnsOfBlock), m.count), kThreads, a, stream);
  launch("normuon factors", normuon_factors_kernel, grid_of(m.count), kFactorThreads, a, stream);
  const int64_t cols = std::min(m.cols, kJobElements), rows = kJobElements / cols;
  launch("normuon scale", normuon_scale_kernel,
         grid_of(blocks_for(m.rows, rows), blocks_for(m.cols, cols), m.count), kThreads,
         ScaleArguments{a, static_cast<int>(rows), static_cast<int>(cols)}, stream);
}

/// Calls function(first, states) for groups of states. Each group has as many states as fit into a
/// launch.
template <class Function>
void by_launches(std::span<const NormuonState> states, const Function& function) {
  for (size_t first = 0; first < states.size(); first += kStates)
    function(static_cast<int64_t>(first),
             states.subspan(first, std::min<size_t>(kStates, states.size() - first)));
}

}  // namespace

void normuon(const MatrixBatch& matrices, std::span<const NormuonState> states,
             const StepTables& tables, cudaStream_t stream) {
  by_launches(states, [&](int64_t first, std::span<const NormuonState> part) {
    NormuonArguments a{matrices, tables, {}};
    a.matrices.data =
        static_cast<char*>(matrices.data) + first * matrices.stride * size_of(matrices.dtype);
    a.matrices.count = std::ssize(part);
    if (copy_states(part, a.states) > 0) normuon_part(a, stream);
  });
}

void commit_normuon(std::span<const NormuonState> states, const ParamView* params,
                    const CommitCondition& condition, cudaStream_t stream) {
  by_launches(states, [&](int64_t, std::span<const NormuonState> part) {
    CommitArguments a{params, condition, {}};
    const int64_t neurons = copy_states(part, a.states);
    if (neurons > 0)
      launch("commit_normuon", commit_normuon_kernel,
             grid_of(blocks_for(neurons, kThreads), std::ssize(part)), kThreads, a, stream);
  });
}

}  // namespace muonrt::cuda
