// message <- cast(direction(momentum', gradient)), and the scan of gradients that no pack reads.
// Formulas: backend/update_rules.hpp. Arrays are read where they lie: 16 bytes at a time where all
// rows of a job begin on such addresses, else element by element. Nothing but the message and the
// findings is written. A block does one job; a job belongs to one parameter.

#include "cuda/device/launch.hpp"
#include "cuda/kernels/findings.cuh"
#include "cuda/kernels/kernels.hpp"
#include "cuda/kernels/param_walk.cuh"
#include "cuda/kernels/rectangle.cuh"

namespace muonrt::cuda {

namespace {

struct PackArguments {
  Table<PieceItem> table;
  const ParamView* params;
  const MuonScalars* groups;
  void* message;
  DType transport;
  Findings* findings;
};

struct DirectionBody {
  const void* grad;
  const void* momentum;
  void* message;
  DType grad_dtype, momentum_dtype, transport;
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
    store(message, transport, packed + row * packed_ld + col, out, lanes);
  }
  __device__ bool bad() const {
    return gradient.not_finite_as(DType::kF32) || sent.not_finite_as(transport);
  }
};

/// A gradient that is an addend of another rank's sum: as it is.
struct AddendBody {
  const void* grad;
  void* message;
  DType grad_dtype, transport;
  int64_t local, local_ld, packed, packed_ld;
  Largest sent;

  template <int N>
  __device__ void run(int row, int col, Lanes lanes) {
    const Values<N> g = widen(load<N>(grad, grad_dtype, local + row * local_ld + col), grad_dtype);
    for (int i = 0; i < N; ++i) sent.take(g.x[i]);
    store(message, transport, packed + row * packed_ld + col, g, lanes);
  }
  __device__ bool bad() const { return sent.not_finite_as(transport); }
};

/// Zeros for a parameter without a gradient.
struct ZeroBody {
  void* message;
  DType transport;
  int64_t packed, packed_ld;

  template <int N>
  __device__ void run(int row, int col, Lanes lanes) {
    store(message, transport, packed + row * packed_ld + col, Values<N>{}, lanes);
  }
};

__global__ void __launch_bounds__(kThreads) pack_direction_kernel(PackArguments a) {
  const Job job = a.table.jobs[blockIdx.x];
  const PieceItem item = a.table.items[job.item];
  const ParamView& view = a.params[item.param];
  const int64_t local = item.local_offset + job.row * item.local_ld + job.col;
  const int64_t packed = item.packed_offset + job.row * item.packed_ld + job.col;
  const bool one_row = job.rows == 1;
  const bool packed_fits = aligned(a.message, a.transport, packed) &&
                           (one_row || aligned_stride(a.transport, item.packed_ld));
  if (!view.active) {
    ZeroBody body{a.message, a.transport, packed, item.packed_ld};
    for_elements(job.rows, job.cols, packed_fits, body);
    return;
  }
  const bool grad_fits = packed_fits && aligned(view.grad, view.grad_dtype, local) &&
                         (one_row || aligned_stride(view.grad_dtype, item.local_ld));
  if (!view.momentum) {
    AddendBody body{view.grad,     a.message, view.grad_dtype, a.transport, local,
                    item.local_ld, packed,    item.packed_ld,  {}};
    for_elements(job.rows, job.cols, grad_fits, body);
    if (__syncthreads_or(body.bad()) && threadIdx.x == 0) note_nonfinite(*a.findings, item.param);
    return;
  }
  const bool fits = grad_fits && aligned(view.momentum, view.momentum_dtype, local) &&
                    (one_row || aligned_stride(view.momentum_dtype, item.local_ld));
  DirectionBody body{
      view.grad, view.momentum, a.message, view.grad_dtype, view.momentum_dtype,  a.transport,
      local,     item.local_ld, packed,    item.packed_ld,  a.groups[view.group], {},
      {}};
  for_elements(job.rows, job.cols, fits, body);
  if (__syncthreads_or(body.bad()) && threadIdx.x == 0) note_nonfinite(*a.findings, item.param);
}

struct ScanArguments {
  const int32_t* list;
  int64_t count;
  const ParamView* params;
  Findings* findings;
};

/// Gradients as they enter the formulas: scaled, and squared where there is a second moment.
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
  /// The square of the largest is the largest square.
  __device__ bool bad() const {
    const auto x = std::bit_cast<float>(entering.bits);
    return not_finite_as(square ? x * x : x, DType::kF32);
  }
};

struct ScanPart {
  Findings* findings;
  __device__ void operator()(const ParamView& view, int32_t param, int64_t first, int n) const {
    ScanBody body{view.grad, view.grad_dtype, view.grad_scale, view.variance != nullptr, first, {}};
    for_elements(1, n, aligned(view.grad, view.grad_dtype, first), body);
    if (__syncthreads_or(body.bad()) && threadIdx.x == 0) note_nonfinite(*findings, param);
  }
};

__global__ void __launch_bounds__(kThreads) scan_kernel(ScanArguments a) {
  for_each_part<true>(a.list, a.count, a.params, ScanPart{a.findings});
}

}  // namespace

void pack_direction(const Table<PieceItem>& table, const ParamView* params,
                    const MuonScalars* groups, void* message, DType transport, Findings* findings,
                    cudaStream_t stream) {
  if (table.job_count == 0) return;
  launch("pack_direction", pack_direction_kernel, grid_of(table.job_count), kThreads,
         PackArguments{table, params, groups, message, transport, findings}, stream);
}

void scan(const int32_t* list, int64_t count, const ParamView* params, Findings* findings,
          int blocks, cudaStream_t stream) {
  if (count == 0) return;
  launch("scan", scan_kernel, grid_of(blocks), kThreads,
         ScanArguments{list, count, params, findings}, stream);
}

}  // namespace muonrt::cuda
