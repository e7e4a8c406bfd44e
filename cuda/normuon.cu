// NorMuon on one whole matrix as it is stored: sums of squares of its lines (rows or columns), then
// their factors from the second moments, then the product. Formulas and the order of sums:
// backend/normuon.hpp. Nothing happens where the parameter sits out.

#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/launch.hpp"

namespace muonrt::cuda {

namespace {

constexpr int kLinesOfBlock = kThreads / kLineChains;

struct NormuonArguments {
  MatrixBatch matrix;
  NormuonState state;
  const ParamView* params;
  const MuonScalars* groups;
  __device__ bool active() const { return params[state.param].active != 0; }
  __device__ int64_t length() const { return state.stored_rows ? matrix.cols : matrix.rows; }
  __device__ float at(int64_t row, int64_t col) const {
    return widen(load<1>(matrix.data, matrix.dtype, row * matrix.ld + col), matrix.dtype).x[0];
  }
};

/// A block makes 8 lines. Of rows, 32 neighbouring threads are the chains of one line; of columns,
/// neighbouring threads are neighbouring columns.
__global__ void __launch_bounds__(kThreads) normuon_sums_kernel(NormuonArguments a) {
  if (!a.active()) return;
  __shared__ float chains[kLinesOfBlock][kLineChains];
  const int thread = static_cast<int>(threadIdx.x);
  const bool rows = a.state.stored_rows;
  const int mine = rows ? thread / kLineChains : thread % kLinesOfBlock;
  const int chain = rows ? thread % kLineChains : thread / kLinesOfBlock;
  const int64_t line = static_cast<int64_t>(blockIdx.x) * kLinesOfBlock + mine;
  const int64_t length = a.length();
  float sum = 0.0f;
  if (line < a.state.lines) {
    for (int64_t i = chain; i < length; i += kLineChains) {
      const float x = rows ? a.at(line, i) : a.at(i, line);
      sum += x * x;
    }
  }
  chains[mine][chain] = sum;
  __syncthreads();
  if (thread < kLinesOfBlock) {
    const int64_t done = static_cast<int64_t>(blockIdx.x) * kLinesOfBlock + thread;
    if (done < a.state.lines)
      a.state.factors[done] = fold_chains(chains[thread]) / static_cast<float>(length);
  }
}

/// One block; a thread is a chain of the sums over lines.
__global__ void __launch_bounds__(kLineChains) normuon_factors_kernel(NormuonArguments a) {
  if (!a.active()) return;
  __shared__ double squares[kLineChains], scaled[kLineChains];
  __shared__ float restore;
  const NormuonState& s = a.state;
  const int thread = static_cast<int>(threadIdx.x);
  const float beta2 = a.groups[s.group].normuon_beta2;
  double sum = 0.0, sum_scaled = 0.0;
  for (int64_t line = thread; line < s.lines; line += kLineChains) {
    const float mean = s.factors[line];
    const float moment = normuon_moment(s.moments[line], mean, beta2);
    const float factor = normuon_line_factor(moment);
    s.staged[line] = moment;
    s.factors[line] = factor;
    const double v = static_cast<double>(mean), f = static_cast<double>(factor);
    sum += v;
    sum_scaled += v * f * f;
  }
  squares[thread] = sum;
  scaled[thread] = sum_scaled;
  __syncthreads();
  if (thread == 0) restore = normuon_restore(fold_chains(squares), fold_chains(scaled), a.length());
  __syncthreads();
  for (int64_t line = thread; line < s.lines; line += kLineChains) s.factors[line] *= restore;
}

__global__ void __launch_bounds__(kThreads) normuon_scale_kernel(NormuonArguments a) {
  if (!a.active()) return;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (col >= a.matrix.cols) return;
  for (int64_t row = blockIdx.y; row < a.matrix.rows; row += gridDim.y) {
    const float factor = a.state.factors[a.state.stored_rows ? row : col];
    store(a.matrix.data, a.matrix.dtype, row * a.matrix.ld + col,
          Values<1>{{a.at(row, col) * factor}});
  }
}

struct CommitArguments {
  NormuonState state;
  const ParamView* params;
  const Ballot* sum;
  int64_t world, stamp;
};

__global__ void __launch_bounds__(kThreads) commit_normuon_kernel(CommitArguments a) {
  if (!passes(*a.sum, a.world, a.stamp) || !a.params[a.state.param].active) return;
  const int64_t line = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (line < a.state.lines) a.state.moments[line] = a.state.staged[line];
}

int64_t blocks_for(int64_t elements, int64_t each) { return (elements + each - 1) / each; }

}  // namespace

void normuon(const MatrixBatch& matrix, const NormuonState& state, const ParamView* params,
             const MuonScalars* groups, cudaStream_t stream) {
  const NormuonArguments a{matrix, state, params, groups};
  launch("normuon sums", normuon_sums_kernel, grid_of(blocks_for(state.lines, kLinesOfBlock)),
         kThreads, a, stream);
  launch("normuon factors", normuon_factors_kernel, grid_of(1), kLineChains, a, stream);
  constexpr int64_t kBands = 1024;
  launch("normuon scale", normuon_scale_kernel,
         grid_of(blocks_for(matrix.cols, kThreads), matrix.rows < kBands ? matrix.rows : kBands),
         kThreads, a, stream);
}

void commit_normuon(const NormuonState& state, const ParamView* params, const Ballot* sum,
                    int64_t world, int64_t stamp, cudaStream_t stream) {
  launch("commit_normuon", commit_normuon_kernel, grid_of(blocks_for(state.lines, kThreads)),
         kThreads, CommitArguments{state, params, sum, world, stamp}, stream);
}

}  // namespace muonrt::cuda
