// Computes message = cast(direction(new momentum, gradient)), scans gradients that are not packed,
// and compares weights with their master weights. The formulas are in backend/update_rules.hpp.
// Arrays are read 16 bytes at a time if all rows of a job begin at multiples of 16 bytes, and
// otherwise element by element. Only the message and the findings are written. A thread block
// processes one job, and a job belongs to one parameter.

#include "backend/weight_bits.hpp"
#include "cuda/device/launch.hpp"
#include "cuda/kernels/findings.cuh"
#include "cuda/kernels/kernels.hpp"
#include "cuda/kernels/param_walk.cuh"
#include "cuda/kernels/rectangle.cuh"

namespace muonrt::cuda {

namespace {

struct PackArguments {
  Table<ShardBlockItem> table;
  StepTables tables;
  TypedBuffer message;
  Findings* findings;
};

struct DirectionBody {
  const void* grad;
  const void* momentum;
  TypedBuffer message;
  DType grad_dtype, momentum_dtype;
  int64_t local, local_ld, packed, packed_ld;
  MuonScalars scalars;
  Largest gradient, sent;

  template <int N>
  __device__ void run(int row, int col, Lanes lanes) {
    const int64_t here = local + row * local_ld + col;
    const Raw<N> raw_g = load<N>(grad, grad_dtype, here);
    const Raw<N> raw_m = load<N>(momentum, momentum_dtype, here);
    const Values<N> g = widen(raw_g, grad_dtype), m = widen(raw_m, momentum_dtype);
    Values<N> out;
    for (int i = 0; i < N; ++i) {
      const float scaled = g.x[i] * scalars.grad_scale;
      out.x[i] = direction(next_momentum(m.x[i], scaled, scalars), scaled, scalars);
      gradient.take(scaled);
      sent.take(out.x[i]);
    }
    store(message.data, message.dtype, packed + row * packed_ld + col, out, lanes);
  }
  __device__ bool bad() const { return bad_in_f32() || sent.not_finite_as(message.dtype); }
  __device__ bool bad_in_f32() const {
    return gradient.not_finite_as(DType::kF32) || sent.not_finite_as(DType::kF32);
  }
};

/// Packs a partial gradient without scaling. Another rank adds it to the other partial gradients.
struct PartialGradBody {
  const void* grad;
  TypedBuffer message;
  DType grad_dtype;
  int64_t local, local_ld, packed, packed_ld;
  Largest sent;

  template <int N>
  __device__ void run(int row, int col, Lanes lanes) {
    const Values<N> g = widen(load<N>(grad, grad_dtype, local + row * local_ld + col), grad_dtype);
    for (int i = 0; i < N; ++i) sent.take(g.x[i]);
    store(message.data, message.dtype, packed + row * packed_ld + col, g, lanes);
  }
  __device__ bool bad() const { return sent.not_finite_as(message.dtype); }
  __device__ bool bad_in_f32() const { return bad(); }
};

/// Packs zeros for a parameter without a gradient.
struct ZeroBody {
  TypedBuffer message;
  int64_t packed, packed_ld;

  template <int N>
  __device__ void run(int row, int col, Lanes lanes) {
    store(message.data, message.dtype, packed + row * packed_ld + col, Values<N>{}, lanes);
  }
};

template <class Body>
__device__ inline void pack_elements(const Job& job, bool vectors, Body& body, int32_t param,
                                     Findings* findings) {
  for_elements(job.rows, job.cols, vectors, body);
  if (!__syncthreads_or(body.bad())) return;
  const bool in_f32 = __syncthreads_or(body.bad_in_f32());
  if (threadIdx.x == 0) note_nonfinite(*findings, param, in_f32);
}

template <bool kPartialGrad>
__device__ inline void pack_gradients(const PackArguments& a) {
  const Job job = a.table.jobs[blockIdx.x];
  const ShardBlockItem item = a.table.items[job.item];
  const ParamView& view = a.tables.params[item.param];
  const int64_t local = item.local_offset + job.row * item.local_ld + job.col;
  const int64_t packed = item.packed_offset + job.row * item.packed_ld + job.col;
  const bool one_row = job.rows == 1;
  const bool packed_fits = aligned(a.message.data, a.message.dtype, packed) &&
                           (one_row || aligned_stride(a.message.dtype, item.packed_ld));
  if (!view.active) {
    ZeroBody body{a.message, packed, item.packed_ld};
    for_elements(job.rows, job.cols, packed_fits, body);
    return;
  }
  const bool grad_fits = packed_fits && aligned(view.grad, view.grad_dtype, local) &&
                         (one_row || aligned_stride(view.grad_dtype, item.local_ld));
  if constexpr (kPartialGrad) {
    PartialGradBody body{view.grad,     a.message, view.grad_dtype, local,
                         item.local_ld, packed,    item.packed_ld,  {}};
    pack_elements(job, grad_fits, body, item.param, a.findings);
  } else {
    const bool fits = grad_fits && aligned(view.momentum, view.momentum_dtype, local) &&
                      (one_row || aligned_stride(view.momentum_dtype, item.local_ld));
    DirectionBody body{.grad = view.grad,
                       .momentum = view.momentum,
                       .message = a.message,
                       .grad_dtype = view.grad_dtype,
                       .momentum_dtype = view.momentum_dtype,
                       .local = local,
                       .local_ld = item.local_ld,
                       .packed = packed,
                       .packed_ld = item.packed_ld,
                       .scalars = a.tables.groups[view.group],
                       .gradient = {},
                       .sent = {}};
    pack_elements(job, fits, body, item.param, a.findings);
  }
}

__global__ void __launch_bounds__(kThreads) pack_direction_kernel(PackArguments a) {
  pack_gradients<false>(a);
}
__global__ void __launch_bounds__(kThreads) pack_partial_grad_kernel(PackArguments a) {
  pack_gradients<true>(a);
}

struct ScanArguments {
  const int32_t* list;
  int64_t count;
  const ParamView* params;
  Findings* findings;
};

/// Checks gradients in the form that the formulas use: scaled, and also squared if the parameter
/// has a second moment.
struct ScanBody {
  const void* grad;
  DType dtype;
  float scale;
  bool square;
  int64_t first;
  Largest entering;

  template <int N>
  __device__ void run(int, int col, Lanes) {
    const Values<N> g = widen(load<N>(grad, dtype, first + col), dtype);
    for (int i = 0; i < N; ++i) entering.take(g.x[i] * scale);
  }
  /// The largest square is the square of the largest magnitude.
  __device__ bool bad() const {
    const auto x = std::bit_cast<float>(entering.bits);
    return not_finite_as(square ? x * x : x, DType::kF32);
  }
};

struct ScanStretch {
  Findings* findings;
  __device__ void operator()(const ParamView& view, int32_t param, int64_t first, int n) const {
    ScanBody body{view.grad, view.grad_dtype, view.grad_scale, view.variance != nullptr, first, {}};
    for_elements(1, n, aligned(view.grad, view.grad_dtype, first), body);
    if (__syncthreads_or(body.bad()) && threadIdx.x == 0) note_nonfinite(*findings, param);
  }
};

__global__ void __launch_bounds__(kThreads) scan_kernel(ScanArguments a) {
  for_each_stretch<GradientElements>(a.list, a.count, a.params, ScanStretch{a.findings});
}

struct StaleBody {
  const void* param;
  const float* master;
  DType dtype;
  bool by_caller;
  int64_t first;
  bool stale;

  template <int N>
  __device__ void run(int, int col, Lanes) {
    const Raw<N> raw = load<N>(param, dtype, first + col);
    const Values<N> m = widen(load<N>(master, DType::kF32, first + col), DType::kF32);
    if (dtype == DType::kF32) {
      const Values<N> w = widen(raw, DType::kF32);
      for (int i = 0; i < N; ++i) stale |= is_stale(w.x[i], m.x[i], by_caller);
    } else {
      for (int i = 0; i < N; ++i) stale |= is_stale(bf16{half_of(raw, i)}, m.x[i], by_caller);
    }
  }
};

struct StaleStretch {
  Findings* findings;
  __device__ void operator()(const ParamView& view, int32_t param, int64_t first, int n) const {
    StaleBody body{view.param, view.master, view.param_dtype, view.rounded_by_caller != 0,
                   first,      false};
    const bool fits =
        aligned(view.param, view.param_dtype, first) && aligned(view.master, DType::kF32, first);
    for_elements(1, n, fits, body);
    if (__syncthreads_or(body.stale) && threadIdx.x == 0) note_stale(*findings, param);
  }
};

struct MasterElements {
  __device__ static int64_t of(const ParamView& view) {
    return view.form == WeightForm::kMaster ? ActiveElements::of(view) : 0;
  }
};

__global__ void __launch_bounds__(kThreads) check_masters_kernel(ScanArguments a) {
  for_each_stretch<MasterElements>(a.list, a.count, a.params, StaleStretch{a.findings});
}

}  // namespace

void pack_direction(const Table<ShardBlockItem>& blocks, const StepTables& tables,
                    TypedBuffer message, Findings* findings, cudaStream_t stream) {
  if (blocks.job_count == 0) return;
  launch("pack_direction", pack_direction_kernel, grid_of(blocks.job_count), kThreads,
         PackArguments{blocks, tables, message, findings}, stream);
}

void pack_partial_grad(const Table<ShardBlockItem>& blocks, const ParamView* params,
                       TypedBuffer message, Findings* findings, cudaStream_t stream) {
  if (blocks.job_count == 0) return;
  launch("pack_partial_grad", pack_partial_grad_kernel, grid_of(blocks.job_count), kThreads,
         PackArguments{blocks, {.params = params}, message, findings}, stream);
}

void scan(const int32_t* list, int64_t count, const ParamView* params, Findings* findings,
          int blocks, cudaStream_t stream) {
  if (count == 0) return;
  launch("scan", scan_kernel, grid_of(blocks), kThreads,
         ScanArguments{list, count, params, findings}, stream);
}

void check_masters(const int32_t* list, int64_t count, const ParamView* params, Findings* findings,
                   int blocks, cudaStream_t stream) {
  if (count == 0) return;
  launch("check_masters", check_masters_kernel, grid_of(blocks), kThreads,
         ScanArguments{list, count, params, findings}, stream);
}

}  // namespace muonrt::cuda
