// Gradients that arrive as addends: their sum in f32, one launch for each addend so that the order
// is that of the launches; AdamW of a slice at the rank that owns it, as values for all holders;
// and those values taken over where the summed ballots pass. Formulas: backend/update_rules.hpp. A
// block does one job.

#include "cuda/device/launch.hpp"
#include "cuda/kernels/findings.cuh"
#include "cuda/kernels/kernels.hpp"
#include "cuda/kernels/rectangle.cuh"
#include "cuda/kernels/weights.cuh"

namespace muonrt::cuda {

namespace {

struct SumArguments {
  Table<PieceItem> table;
  float* sums;
  const void* message;
  DType wire;
  bool first;
};

struct SumBody {
  float* sums;
  const void* message;
  DType wire;
  int64_t local, local_ld, packed, packed_ld;
  bool first;

  template <int N>
  __device__ void run(int row, int col, Lanes lanes) {
    const int64_t here = local + row * local_ld + col;
    Values<N> x = widen(load<N>(message, wire, packed + row * packed_ld + col), wire);
    if (!first) {
      const Values<N> sum = widen(load<N>(sums, DType::kF32, here), DType::kF32);
      for (int i = 0; i < N; ++i) x.x[i] = sum.x[i] + x.x[i];
    }
    store(sums, DType::kF32, here, x, lanes);
  }
};

__global__ void __launch_bounds__(kThreads) accumulate_kernel(SumArguments a) {
  const Job job = a.table.jobs[blockIdx.x];
  const PieceItem item = a.table.items[job.item];
  const int64_t local = item.local_offset + job.row * item.local_ld + job.col;
  const int64_t packed = item.packed_offset + job.row * item.packed_ld + job.col;
  const bool rows_fit = job.rows == 1 || (aligned_stride(a.wire, item.packed_ld) &&
                                          aligned_stride(DType::kF32, item.local_ld));
  SumBody body{a.sums, a.message, a.wire, local, item.local_ld, packed, item.packed_ld, a.first};
  for_elements(
      job.rows, job.cols,
      rows_fit && aligned(a.message, a.wire, packed) && aligned(a.sums, DType::kF32, local), body);
}

struct AdamValueArguments {
  Table<PieceItem> table;
  const ParamView* params;
  const AdamScalars* scalars;
  void* message;
  DType wire;
  Findings* findings;
};

struct AdamValueBody {
  Weights weights;
  const void* grad;
  const float *first_moment, *second_moment;
  void* message;
  DType grad_dtype, wire;
  int64_t local, local_ld, packed, packed_ld;
  AdamScalars scalars;
  bool active, bad;

  template <int N>
  __device__ void run(int row, int col, Lanes lanes) {
    const int64_t here = local + row * local_ld + col;
    const int64_t there = packed + row * packed_ld + col;
    if (!active) return store(message, wire, there, Values<N>{}, lanes);
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
    store(message, wire, there, w, lanes);
  }
};

__global__ void __launch_bounds__(kThreads) pack_adamw_kernel(AdamValueArguments a) {
  const Job job = a.table.jobs[blockIdx.x];
  const PieceItem item = a.table.items[job.item];
  const ParamView& view = a.params[item.param];
  const int64_t local = item.local_offset + job.row * item.local_ld + job.col;
  const int64_t packed = item.packed_offset + job.row * item.packed_ld + job.col;
  const Weights weights = Weights::of(view, item.param);
  const bool fits =
      job.rows == 1 && weights.vectors_fit(local) && aligned(view.grad, view.grad_dtype, local) &&
      aligned(view.momentum, DType::kF32, local) && aligned(view.variance, DType::kF32, local) &&
      aligned(a.message, a.wire, packed);
  AdamValueBody body{weights,          view.grad,      static_cast<const float*>(view.momentum),
                     view.variance,    a.message,      view.grad_dtype,
                     a.wire,           local,          item.local_ld,
                     packed,           item.packed_ld, a.scalars[view.scalars],
                     view.active != 0, false};
  for_elements(job.rows, job.cols, fits, body);
  if (__syncthreads_or(body.bad) && threadIdx.x == 0) note_nonfinite(*a.findings, item.param);
}

struct ValueArguments {
  Table<PieceItem> table;
  const ParamView* params;
  const void* message;
  DType wire;
  Verdict verdict;
};

struct ValueBody {
  Weights weights;
  const void* message;
  DType wire;
  int64_t local, local_ld, packed, packed_ld;

  template <int N>
  __device__ void run(int row, int col, Lanes lanes) {
    constexpr Places kUnused{1, 0, 0};  // sums are not rounded at random
    weights.write(local + row * local_ld + col,
                  widen(load<N>(message, wire, packed + row * packed_ld + col), wire), kUnused, 0,
                  lanes);
  }
};

__global__ void __launch_bounds__(kThreads) commit_values_kernel(ValueArguments a) {
  if (!a.verdict.consents()) return;
  const Job job = a.table.jobs[blockIdx.x];
  const PieceItem item = a.table.items[job.item];
  const ParamView& view = a.params[item.param];
  if (!view.active) return;
  const int64_t local = item.local_offset + job.row * item.local_ld + job.col;
  const int64_t packed = item.packed_offset + job.row * item.packed_ld + job.col;
  const Weights weights = Weights::of(view, item.param);
  ValueBody body{weights, a.message, a.wire, local, item.local_ld, packed, item.packed_ld};
  for_elements(job.rows, job.cols,
               job.rows == 1 && weights.vectors_fit(local) && aligned(a.message, a.wire, packed),
               body);
}

}  // namespace

void accumulate(const Table<PieceItem>& table, float* sums, const void* message, DType wire,
                bool first, cudaStream_t stream) {
  if (table.job_count == 0) return;
  launch("accumulate", accumulate_kernel, grid_of(table.job_count), kThreads,
         SumArguments{table, sums, message, wire, first}, stream);
}

void pack_adamw(const Table<PieceItem>& table, const ParamView* params, const AdamScalars* scalars,
                void* message, DType wire, Findings* findings, cudaStream_t stream) {
  if (table.job_count == 0) return;
  launch("pack_adamw", pack_adamw_kernel, grid_of(table.job_count), kThreads,
         AdamValueArguments{table, params, scalars, message, wire, findings}, stream);
}

void commit_values(const Table<PieceItem>& table, const ParamView* params, const void* message,
                   DType wire, const Ballot* sum, int64_t world, int64_t stamp,
                   cudaStream_t stream) {
  if (table.job_count == 0) return;
  launch("commit_values", commit_values_kernel, grid_of(table.job_count), kThreads,
         ValueArguments{table, params, message, wire, {sum, world, stamp}}, stream);
}

}  // namespace muonrt::cuda
