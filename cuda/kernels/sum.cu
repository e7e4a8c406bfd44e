// Contains three kernels. The first sums partial gradients in f32 with one launch for each
// gradient, so the order of the launches is the order of the sum. The second runs AdamW for a slice
// on the rank that holds the slice's moments; muonrt then sends the new values to all ranks that
// hold the slice's weights. The third commits these values if the vote sum passes. The formulas are
// in backend/update_rules.hpp. A thread block processes one job.

#include "cuda/device/launch.hpp"
#include "cuda/kernels/findings.cuh"
#include "cuda/kernels/kernels.hpp"
#include "cuda/kernels/rectangle.cuh"
#include "cuda/kernels/weights.cuh"

namespace muonrt::cuda {

namespace {

struct SumArguments {
  Table<ShardBlockItem> table;
  float* sums;
  ConstTypedBuffer message;
  bool first;
};

struct SumBody {
  float* sums;
  ConstTypedBuffer message;
  int64_t local, local_ld, packed, packed_ld;
  bool first;

  template <int N>
  __device__ void run(int row, int col, Lanes lanes) {
    const int64_t here = local + row * local_ld + col;
    Values<N> x =
        widen(load<N>(message.data, message.dtype, packed + row * packed_ld + col), message.dtype);
    if (!first) {
      const Values<N> sum = widen(load<N>(sums, DType::kF32, here), DType::kF32);
      for (int i = 0; i < N; ++i) x.x[i] = sum.x[i] + x.x[i];
    }
    store(sums, DType::kF32, here, x, lanes);
  }
};

__global__ void __launch_bounds__(kThreads) accumulate_kernel(SumArguments a) {
  const Job job = a.table.jobs[blockIdx.x];
  const ShardBlockItem item = a.table.items[job.item];
  const int64_t local = item.local_offset + job.row * item.local_ld + job.col;
  const int64_t packed = item.packed_offset + job.row * item.packed_ld + job.col;
  const bool rows_fit = job.rows == 1 || (aligned_stride(a.message.dtype, item.packed_ld) &&
                                          aligned_stride(DType::kF32, item.local_ld));
  SumBody body{a.sums, a.message, local, item.local_ld, packed, item.packed_ld, a.first};
  for_elements(job.rows, job.cols,
               rows_fit && aligned(a.message.data, a.message.dtype, packed) &&
                   aligned(a.sums, DType::kF32, local),
               body);
}

struct AdamValueArguments {
  Table<ShardBlockItem> table;
  StepTables tables;
  TypedBuffer message;
  Findings* findings;
};

struct AdamValueBody {
  Weights weights;
  const void* grad;
  const float *first_moment, *second_moment;
  TypedBuffer message;
  DType grad_dtype;
  int64_t local, local_ld, packed, packed_ld;
  AdamScalars scalars;
  bool active, bad;

  template <int N>
  __device__ void run(int row, int col, Lanes lanes) {
    const int64_t here = local + row * local_ld + col;
    const int64_t there = packed + row * packed_ld + col;
    if (!active) return store(message.data, message.dtype, there, Values<N>{}, lanes);
    const Raw<N> raw_g = load<N>(grad, grad_dtype, here);
    const Raw<N> raw_m = load<N>(first_moment, DType::kF32, here);
    const Raw<N> raw_v = load<N>(second_moment, DType::kF32, here);
    Values<N> w = weights.read<N>(here);
    const Values<N> g = widen(raw_g, grad_dtype);
    Values<N> m = widen(raw_m, DType::kF32), v = widen(raw_v, DType::kF32);
    for (int i = 0; i < N; ++i) {
      const float scaled = g.x[i] * scalars.grad_scale;
      bad |= not_finite_as(scaled * scaled, DType::kF32);
      w.x[i] = adamw_update(w.x[i], scaled, m.x[i], v.x[i], scalars);
    }
    store(message.data, message.dtype, there, w, lanes);
  }
};

__global__ void __launch_bounds__(kThreads) pack_adamw_kernel(AdamValueArguments a) {
  const Job job = a.table.jobs[blockIdx.x];
  const ShardBlockItem item = a.table.items[job.item];
  const ParamView& view = a.tables.params[item.param];
  const int64_t local = item.local_offset + job.row * item.local_ld + job.col;
  const int64_t packed = item.packed_offset + job.row * item.packed_ld + job.col;
  const Weights weights = Weights::of(view, nullptr);
  const bool fits =
      job.rows == 1 && weights.vectors_fit(local) && aligned(view.grad, view.grad_dtype, local) &&
      aligned(view.momentum, DType::kF32, local) && aligned(view.variance, DType::kF32, local) &&
      aligned(a.message.data, a.message.dtype, packed);
  AdamValueBody body{.weights = weights,
                     .grad = view.grad,
                     .first_moment = static_cast<const float*>(view.momentum),
                     .second_moment = view.variance,
                     .message = a.message,
                     .grad_dtype = view.grad_dtype,
                     .local = local,
                     .local_ld = item.local_ld,
                     .packed = packed,
                     .packed_ld = item.packed_ld,
                     .scalars = a.tables.adam[view.scalars],
                     .active = view.active != 0,
                     .bad = false};
  for_elements(job.rows, job.cols, fits, body);
  if (__syncthreads_or(body.bad) && threadIdx.x == 0) note_nonfinite(*a.findings, item.param);
}

struct ValueArguments {
  Table<ShardBlockItem> table;
  const ParamView* params;
  ConstTypedBuffer message;
  CommitCondition condition;
};

struct ValueBody {
  Weights weights;
  ConstTypedBuffer message;
  int64_t local, local_ld, packed, packed_ld;

  template <int N>
  __device__ void run(int row, int col, Lanes lanes) {
    constexpr Positions kUnused{1, 0, 0};  // sums are not rounded stochastically
    weights.write(
        local + row * local_ld + col,
        widen(load<N>(message.data, message.dtype, packed + row * packed_ld + col), message.dtype),
        kUnused, 0, lanes);
  }
};

__global__ void __launch_bounds__(kThreads) commit_values_kernel(ValueArguments a) {
  if (!a.condition.passes()) return;
  const Job job = a.table.jobs[blockIdx.x];
  const ShardBlockItem item = a.table.items[job.item];
  const ParamView& view = a.params[item.param];
  if (!view.active) return;
  const int64_t local = item.local_offset + job.row * item.local_ld + job.col;
  const int64_t packed = item.packed_offset + job.row * item.packed_ld + job.col;
  const Weights weights = Weights::of(view, a.condition.findings);
  ValueBody body{weights, a.message, local, item.local_ld, packed, item.packed_ld};
  for_elements(job.rows, job.cols,
               job.rows == 1 && weights.vectors_fit(local) &&
                   aligned(a.message.data, a.message.dtype, packed),
               body);
}

}  // namespace

void accumulate(const Table<ShardBlockItem>& blocks, float* sums, ConstTypedBuffer message,
                bool first, cudaStream_t stream) {
  if (blocks.job_count == 0) return;
  launch("accumulate", accumulate_kernel, grid_of(blocks.job_count), kThreads,
         SumArguments{blocks, sums, message, first}, stream);
}

void pack_adamw(const Table<ShardBlockItem>& blocks, const StepTables& tables, TypedBuffer message,
                Findings* findings, cudaStream_t stream) {
  if (blocks.job_count == 0) return;
  launch("pack_adamw", pack_adamw_kernel, grid_of(blocks.job_count), kThreads,
         AdamValueArguments{blocks, tables, message, findings}, stream);
}

void commit_values(const Table<ShardBlockItem>& blocks, const ParamView* params,
                   ConstTypedBuffer message, const CommitCondition& condition,
                   cudaStream_t stream) {
  if (blocks.job_count == 0) return;
  launch("commit_values", commit_values_kernel, grid_of(blocks.job_count), kThreads,
         ValueArguments{blocks, params, message, condition}, stream);
}

}  // namespace muonrt::cuda
