// Momentum, decay and update of every weight, and AdamW, in one pass each, where the summed ballots
// in device memory pass; else nothing is written. Formulas: backend/update_rules.hpp. With master
// weights the master is the weight and the parameter its rounding.

#include "cuda/kernels.hpp"
#include "cuda/launch.hpp"
#include "cuda/param_walk.cuh"
#include "cuda/rectangle.cuh"

namespace muonrt::cuda {

namespace {

struct Verdict {
  const Ballot* sum;
  int64_t world, stamp;
  __device__ bool consents() const { return passes(*sum, world, stamp); }
};

/// The weights of a parameter: its master's if there is one.
struct Weights {
  void* param;
  float* master;
  DType dtype;

  __device__ bool vectors_fit(int64_t index) const {
    return aligned(param, dtype, index) && (!master || aligned(master, DType::kF32, index));
  }
  template <int N>
  __device__ Raw<N> read(int64_t index) const {
    return master ? load<N>(master, DType::kF32, index) : load<N>(param, dtype, index);
  }
  template <int N>
  __device__ Values<N> value_of(const Raw<N>& raw) const {
    return widen(raw, master ? DType::kF32 : dtype);
  }
  template <int N>
  __device__ void write(int64_t index, const Values<N>& w) const {
    if (master) store(master, DType::kF32, index, w);
    store(param, dtype, index, w);
  }
};

struct MuonArguments {
  Table<PieceItem> table;
  const ParamView* params;
  const MuonScalars* groups;
  const void* message;
  DType transport;
  Verdict verdict;
};

struct MuonBody {
  Weights weights;
  const void* grad;
  float* momentum;
  const void* message;
  DType grad_dtype, transport;
  int64_t local, local_ld, packed, packed_ld;
  float scale;
  MuonScalars scalars;

  template <int N>
  __device__ void run(int row, int col) {
    const int64_t here = local + row * local_ld + col;
    const Raw<N> raw_g = load<N>(grad, grad_dtype, here);
    const Raw<N> raw_m = load<N>(momentum, DType::kF32, here);
    const Raw<N> raw_w = weights.read<N>(here);
    const Raw<N> raw_o = load<N>(message, transport, packed + row * packed_ld + col);
    const Values<N> g = widen(raw_g, grad_dtype), o = widen(raw_o, transport);
    Values<N> m = widen(raw_m, DType::kF32), w = weights.value_of(raw_w);
    for (int i = 0; i < N; ++i) {
      m.x[i] = next_momentum(m.x[i], g.x[i] * scalars.grad_scale, scalars);
      w.x[i] = muon_update(w.x[i], o.x[i], scale, scalars);
    }
    store(momentum, DType::kF32, here, m);
    weights.write(here, w);
  }
};

__global__ void __launch_bounds__(kThreads) commit_muon_kernel(MuonArguments a) {
  if (!a.verdict.consents()) return;
  const Job job = a.table.jobs[blockIdx.x];
  const PieceItem item = a.table.items[job.item];
  const ParamView& view = a.params[item.param];
  if (!view.active) return;
  const int64_t local = item.local_offset + job.row * item.local_ld + job.col;
  const int64_t packed = item.packed_offset + job.row * item.packed_ld + job.col;
  const Weights weights{view.param, view.master, view.param_dtype};
  const bool rows_fit = job.rows == 1 || (aligned_stride(a.transport, item.packed_ld) &&
                                          aligned_stride(DType::kF32, item.local_ld) &&
                                          aligned_stride(view.grad_dtype, item.local_ld) &&
                                          aligned_stride(view.param_dtype, item.local_ld));
  const bool fits =
      rows_fit && weights.vectors_fit(local) && aligned(view.grad, view.grad_dtype, local) &&
      aligned(view.momentum, DType::kF32, local) && aligned(a.message, a.transport, packed);
  MuonBody body{weights,        view.grad,         view.momentum,
                a.message,      view.grad_dtype,   a.transport,
                local,          item.local_ld,     packed,
                item.packed_ld, item.update_scale, a.groups[view.group]};
  for_elements(job.rows, job.cols, fits, body);
}

struct AdamArguments {
  const int32_t* list;
  int64_t count;
  const ParamView* params;
  const AdamScalars* scalars;
  Verdict verdict;
};

struct AdamBody {
  Weights weights;
  const void* grad;
  float *first_moment, *second_moment;
  DType grad_dtype;
  int64_t first;
  AdamScalars scalars;

  template <int N>
  __device__ void run(int, int col) {
    const int64_t here = first + col;
    const Raw<N> raw_g = load<N>(grad, grad_dtype, here);
    const Raw<N> raw_m = load<N>(first_moment, DType::kF32, here);
    const Raw<N> raw_v = load<N>(second_moment, DType::kF32, here);
    const Raw<N> raw_w = weights.read<N>(here);
    const Values<N> g = widen(raw_g, grad_dtype);
    Values<N> m = widen(raw_m, DType::kF32), v = widen(raw_v, DType::kF32);
    Values<N> w = weights.value_of(raw_w);
    for (int i = 0; i < N; ++i)
      w.x[i] = adamw_update(w.x[i], g.x[i] * scalars.grad_scale, m.x[i], v.x[i], scalars);
    store(first_moment, DType::kF32, here, m);
    store(second_moment, DType::kF32, here, v);
    weights.write(here, w);
  }
};

struct AdamPart {
  const AdamScalars* scalars;

  __device__ void operator()(const ParamView& view, int32_t, int64_t first, int n) const {
    const Weights weights{view.param, view.master, view.param_dtype};
    const bool fits = weights.vectors_fit(first) && aligned(view.grad, view.grad_dtype, first) &&
                      aligned(view.momentum, DType::kF32, first) &&
                      aligned(view.variance, DType::kF32, first);
    AdamBody body{weights,         view.grad, view.momentum,        view.variance,
                  view.grad_dtype, first,     scalars[view.scalars]};
    for_elements(1, n, fits, body);
  }
};

__global__ void __launch_bounds__(kThreads) commit_adamw_kernel(AdamArguments a) {
  if (!a.verdict.consents()) return;
  for_each_part(a.list, a.count, a.params, AdamPart{a.scalars});
}

}  // namespace

void commit_muon(const Table<PieceItem>& table, const ParamView* params, const MuonScalars* groups,
                 const void* message, DType transport, const Ballot* sum, int64_t world,
                 int64_t stamp, cudaStream_t stream) {
  if (table.job_count == 0) return;
  launch("commit_muon", commit_muon_kernel, grid_of(table.job_count), kThreads,
         MuonArguments{table, params, groups, message, transport, {sum, world, stamp}}, stream);
}

void commit_adamw(const int32_t* list, int64_t count, const ParamView* params,
                  const AdamScalars* scalars, const Ballot* sum, int64_t world, int64_t stamp,
                  int blocks, cudaStream_t stream) {
  if (count == 0) return;
  launch("commit_adamw", commit_adamw_kernel, grid_of(blocks), kThreads,
         AdamArguments{list, count, params, scalars, {sum, world, stamp}}, stream);
}

}  // namespace muonrt::cuda
