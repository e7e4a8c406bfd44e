// Commits a step. Muon takes two launches: the first updates the momentum, and the second decays
// and updates every weight. AdamW takes one launch. Nothing is written unless the vote sum in
// device memory passes. The formulas are in backend/update_rules.hpp. WeightForm defines how
// weights are stored.

#include "backend/weight_bits.hpp"
#include "cuda/device/launch.hpp"
#include "cuda/kernels/kernels.hpp"
#include "cuda/kernels/param_walk.cuh"
#include "cuda/kernels/rectangle.cuh"
#include "cuda/kernels/weights.cuh"

namespace muonrt::cuda {

namespace {

struct MuonArguments {
  Table<ShardBlockItem> table;
  StepTables tables;
  ConstTypedBuffer message;
  CommitCondition condition;
};

/// Updates the momentum of an item's elements, or their weights if kMomentum is false.
template <bool kMomentum>
struct MuonBody {
  Weights weights;
  const void* grad;
  void* momentum;
  ConstTypedBuffer message;
  DType grad_dtype, momentum_dtype;
  int64_t local, local_ld, packed, packed_ld;
  int64_t inside;  // index of the first element in the item
  Positions positions;
  const float* row_factors;  // the first is for the item's first row; may be null
  float scale, decay_scale;
  MuonScalars scalars;

  template <int N>
  __device__ void run(int row, int col, Lanes lanes) {
    const int64_t here = local + row * local_ld + col;
    const int64_t first = inside + row * packed_ld + col;
    if constexpr (kMomentum) {
      run_momentum<N>(here, first, lanes);
    } else {
      run_weights<N>(here, packed + row * packed_ld + col, first, lanes);
    }
  }

  template <int N>
  __device__ void run_momentum(int64_t here, int64_t first, Lanes lanes) {
    const Raw<N> raw_g = load<N>(grad, grad_dtype, here);
    const Raw<N> raw_m = load<N>(momentum, momentum_dtype, here);
    const Values<N> g = widen(raw_g, grad_dtype);
    Values<N> m = widen(raw_m, momentum_dtype);
    for (int i = 0; i < N; ++i)
      m.x[i] = next_momentum(m.x[i], g.x[i] * scalars.grad_scale, scalars);
    if (momentum_dtype == DType::kF32) return store(momentum, DType::kF32, here, m, lanes);
    store_halves(static_cast<uint16_t*>(momentum), here,
                 weights.rounded<kMomentumSeed>(m, positions, first));
  }

  template <int N>
  __device__ void run_weights(int64_t here, int64_t there, int64_t first, Lanes lanes) {
    const Raw<N> raw_o = load<N>(message.data, message.dtype, there);
    Values<N> w = weights.read<N>(here);
    const Values<N> o = widen(raw_o, message.dtype);
    for (int i = 0; i < N; ++i) w.x[i] = muon_update(w.x[i], o.x[i], scale, decay_scale, scalars);
    if (row_factors) {
      Positions::Position position = positions.at(first);
      for (int i = 0; i < N; ++i, positions.next(position)) w.x[i] *= row_factors[position.row];
    }
    weights.write(here, w, positions, first, lanes);
  }
};

// Number of thread blocks on an SM. On an H200, the kernel reaches 86% of a copy's rate if two
// blocks share an SM, and 99% if four blocks do. With four blocks, the kernel for sm_100 would
// spill registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kCommitBlocks = 3;
#else
constexpr int kCommitBlocks = 4;
#endif

template <bool kMomentum>
__global__ void __launch_bounds__(kThreads, kCommitBlocks) commit_muon_kernel(MuonArguments a) {
  if (!a.condition.passes()) return;
  const Job job = a.table.jobs[blockIdx.x];
  const ShardBlockItem item = a.table.items[job.item];
  const ParamView& view = a.tables.params[item.param];
  if (!view.active) return;
  const int64_t local = item.local_offset + job.row * item.local_ld + job.col;
  const int64_t inside = job.row * item.packed_ld + job.col;
  const int64_t packed = item.packed_offset + inside;
  const Weights weights = Weights::of(view, a.condition.findings);
  const bool rows_fit = job.rows == 1 || (aligned_stride(a.message.dtype, item.packed_ld) &&
                                          aligned_stride(DType::kF32, item.local_ld) &&
                                          aligned_stride(view.momentum_dtype, item.local_ld) &&
                                          aligned_stride(view.grad_dtype, item.local_ld) &&
                                          aligned_stride(view.param_dtype, item.local_ld));
  const bool fits = rows_fit && weights.vectors_fit(local) &&
                    aligned(view.grad, view.grad_dtype, local) &&
                    aligned(view.momentum, view.momentum_dtype, local) &&
                    aligned(a.message.data, a.message.dtype, packed);
  MuonBody<kMomentum> body{
      .weights = weights,
      .grad = view.grad,
      .momentum = view.momentum,
      .message = a.message,
      .grad_dtype = view.grad_dtype,
      .momentum_dtype = view.momentum_dtype,
      .local = local,
      .local_ld = item.local_ld,
      .packed = packed,
      .packed_ld = item.packed_ld,
      .inside = inside,
      .positions = {item.packed_ld, item.tensor_index, item.tensor_ld},
      .row_factors =
          view.row_factors ? view.row_factors + item.tensor_index / item.tensor_ld : nullptr,
      .scale = item.update_scale,
      .decay_scale = item.decay_scale,
      .scalars = a.tables.groups[view.group]};
  for_elements(job.rows, job.cols, fits, body);
}

struct AdamArguments {
  const int32_t* list;
  int64_t count;
  StepTables tables;
  CommitCondition condition;
};

struct AdamBody {
  Weights weights;
  const void* grad;
  float *first_moment, *second_moment;
  DType grad_dtype;
  int64_t first, ld;
  int64_t inside;  // index of the first element in the item
  Positions positions;
  AdamScalars scalars;

  template <int N>
  __device__ void run(int row, int col, Lanes lanes) {
    const int64_t here = first + row * ld + col;
    const Raw<N> raw_g = load<N>(grad, grad_dtype, here);
    const Raw<N> raw_m = load<N>(first_moment, DType::kF32, here);
    const Raw<N> raw_v = load<N>(second_moment, DType::kF32, here);
    Values<N> w = weights.read<N>(here);
    const Values<N> g = widen(raw_g, grad_dtype);
    Values<N> m = widen(raw_m, DType::kF32), v = widen(raw_v, DType::kF32);
    for (int i = 0; i < N; ++i)
      w.x[i] = adamw_update(w.x[i], g.x[i] * scalars.grad_scale, m.x[i], v.x[i], scalars);
    store(first_moment, DType::kF32, here, m, lanes);
    store(second_moment, DType::kF32, here, v, lanes);
    weights.write(here, w, positions, inside + row * positions.cols + col, lanes);
  }
};

/// Applies AdamW to `rows` rows, starting at element `first`.
__device__ inline void run_adam(const ParamView& view, int64_t first, int64_t ld, int rows,
                                int cols, int64_t inside, const Positions& positions,
                                const AdamScalars& scalars, Findings* findings) {
  const Weights weights = Weights::of(view, findings);
  const bool rows_fit =
      rows == 1 || (aligned_stride(DType::kF32, ld) && aligned_stride(view.grad_dtype, ld) &&
                    aligned_stride(view.param_dtype, ld));
  const bool fits =
      rows_fit && weights.vectors_fit(first) && aligned(view.grad, view.grad_dtype, first) &&
      aligned(view.momentum, DType::kF32, first) && aligned(view.variance, DType::kF32, first);
  AdamBody body{weights,
                view.grad,
                static_cast<float*>(view.momentum),
                view.variance,
                view.grad_dtype,
                first,
                ld,
                inside,
                positions,
                scalars};
  for_elements(rows, cols, fits, body);
}

struct AdamStretch {
  const AdamScalars* scalars;
  Findings* findings;

  __device__ void operator()(const ParamView& view, int32_t, int64_t first, int n) const {
    const Positions whole{view.numel, 0, view.numel};
    run_adam(view, first, n, 1, n, first, whole, scalars[view.scalars], findings);
  }
};

__global__ void __launch_bounds__(kThreads) commit_adamw_kernel(AdamArguments a) {
  if (!a.condition.passes()) return;
  for_each_stretch<ActiveElements>(a.list, a.count, a.tables.params,
                                   AdamStretch{a.tables.adam, a.condition.findings});
}

struct AdamBlockArguments {
  Table<ShardBlockItem> table;
  StepTables tables;
  CommitCondition condition;
};

__global__ void __launch_bounds__(kThreads) commit_adamw_blocks_kernel(AdamBlockArguments a) {
  if (!a.condition.passes()) return;
  const Job job = a.table.jobs[blockIdx.x];
  const ShardBlockItem item = a.table.items[job.item];
  const ParamView& view = a.tables.params[item.param];
  if (!view.active) return;
  run_adam(view, item.local_offset + job.row * item.local_ld + job.col, item.local_ld, job.rows,
           job.cols, job.row * item.packed_ld + job.col,
           {item.packed_ld, item.tensor_index, item.tensor_ld}, a.tables.adam[view.scalars],
           a.condition.findings);
}

template <bool kMomentum>
void launch_muon(const char* name, const MuonArguments& arguments, cudaStream_t stream) {
  const int64_t jobs = arguments.table.job_count;
  if (jobs == 0) return;
  launch(name, commit_muon_kernel<kMomentum>, grid_of(jobs), kThreads, arguments, stream);
}

}  // namespace

void commit_muon(const Table<ShardBlockItem>& blocks, const StepTables& tables,
                 ConstTypedBuffer message, const CommitCondition& condition, cudaStream_t stream) {
  // The updates of momentum and weights share no array, so two launches read nothing twice. A
  // single kernel would need more registers than are available to each thread if four thread blocks
  // share an SM.
  launch_muon<true>("commit_muon", {blocks, tables, {}, condition}, stream);
  launch_muon<false>("commit_muon", {blocks, tables, message, condition}, stream);
}

void commit_update(const Table<ShardBlockItem>& blocks, const StepTables& tables,
                   ConstTypedBuffer message, const CommitCondition& condition,
                   cudaStream_t stream) {
  launch_muon<false>("commit_update", {blocks, tables, message, condition}, stream);
}

void commit_momentum(const Table<ShardBlockItem>& blocks, const StepTables& tables,
                     const CommitCondition& condition, cudaStream_t stream) {
  launch_muon<true>("commit_momentum", {blocks, tables, {}, condition}, stream);
}

void commit_adamw(const int32_t* list, int64_t count, const StepTables& tables,
                  const CommitCondition& condition, int blocks, cudaStream_t stream) {
  if (count == 0) return;
  launch("commit_adamw", commit_adamw_kernel, grid_of(blocks), kThreads,
         AdamArguments{list, count, tables, condition}, stream);
}

void commit_adamw_blocks(const Table<ShardBlockItem>& blocks, const StepTables& tables,
                         const CommitCondition& condition, cudaStream_t stream) {
  if (blocks.job_count == 0) return;
  launch("commit_adamw_blocks", commit_adamw_blocks_kernel, grid_of(blocks.job_count), kThreads,
         AdamBlockArguments{blocks, tables, condition}, stream);
}

}  // namespace muonrt::cuda
