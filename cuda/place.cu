// Between messages and whole matrices: unpack (message -> matrix) and pack (matrix -> message,
// cast, non-finite values noted), the same lists read both ways. A rectangle of a message is rows x
// cols, dense; the matrix is stored short side first, so that one of a tall matrix is transposed on
// the way, 64 x 64 at a time through shared memory. A block does one job.

#include "cuda/findings.cuh"
#include "cuda/kernels.hpp"
#include "cuda/launch.hpp"
#include "cuda/rectangle.cuh"

namespace muonrt::cuda {

namespace {

struct PlaceArguments {
  Table<PlacedItem> table;
  void* message;  // read only by unpack
  DType transport;
  bool to_matrix;
  Findings* findings;  // null: not noted
};

/// Rows of an array: element (row, col) at first + row * ld + col.
struct Rows {
  void* data;
  DType dtype;
  int64_t first, ld;
};

__device__ inline bool vectors_fit(const Rows& rows, int count) {
  return aligned(rows.data, rows.dtype, rows.first) &&
         (count == 1 || aligned_stride(rows.dtype, rows.ld));
}

struct CastBody {
  Rows from, to;
  bool bad;

  template <int N>
  __device__ void run(int row, int col) {
    const Values<N> x =
        widen(load<N>(from.data, from.dtype, from.first + row * from.ld + col), from.dtype);
    for (int i = 0; i < N; ++i) bad |= not_finite_as(x.x[i], to.dtype);
    store(to.data, to.dtype, to.first + row * to.ld + col, x);
  }
};

/// to (cols x rows) <- from (rows x cols) transposed. @return whether a written value is not
/// finite.
__device__ inline bool transpose(const Rows& from, const Rows& to, int rows, int cols) {
  constexpr int kSide = static_cast<int>(kTile);
  static_assert(kThreads % kSide == 0);
  __shared__ float tile[kSide][kSide + 1];  // one column more, so that columns lie in all banks
  const int across = static_cast<int>(threadIdx.x) % kSide;
  const int down = static_cast<int>(threadIdx.x) / kSide;
  bool bad = false;
  for (int row = down; row < rows && across < cols; row += kThreads / kSide) {
    const float x =
        widen(load<1>(from.data, from.dtype, from.first + row * from.ld + across), from.dtype).x[0];
    bad |= not_finite_as(x, to.dtype);
    tile[row][across] = x;
  }
  __syncthreads();
  for (int col = down; col < cols && across < rows; col += kThreads / kSide)
    store(to.data, to.dtype, to.first + col * to.ld + across, Values<1>{{tile[across][col]}});
  return bad;
}

__global__ void __launch_bounds__(kThreads) place_kernel(PlaceArguments a) {
  const Job job = a.table.jobs[blockIdx.x];
  const PlacedItem item = a.table.items[job.item];
  const Rows message{a.message, a.transport,
                     item.packed_offset + job.row * item.packed_ld + job.col, item.packed_ld};
  Rows matrix{item.data, item.dtype, item.offset + job.row * item.ld + job.col, item.ld};
  bool bad = false;
  if (item.transposed) {
    matrix.first = item.offset + job.col * item.ld + job.row;
    bad = a.to_matrix ? transpose(message, matrix, job.rows, job.cols)
                      : transpose(matrix, message, job.cols, job.rows);
  } else {
    CastBody body{a.to_matrix ? message : matrix, a.to_matrix ? matrix : message, false};
    for_elements(job.rows, job.cols,
                 vectors_fit(message, job.rows) && vectors_fit(matrix, job.rows), body);
    bad = body.bad;
  }
  if (__syncthreads_or(bad) && threadIdx.x == 0 && a.findings) note_nonfinite(*a.findings);
}

void place(const PlaceArguments& arguments, cudaStream_t stream) {
  if (arguments.table.job_count == 0) return;
  launch("place", place_kernel, grid_of(arguments.table.job_count), kThreads, arguments, stream);
}

}  // namespace

void unpack(const Table<PlacedItem>& table, const void* message, DType transport,
            cudaStream_t stream) {
  place({table, const_cast<void*>(message), transport, true, nullptr}, stream);
}

void pack(const Table<PlacedItem>& table, void* message, DType transport, Findings* findings,
          cudaStream_t stream) {
  place({table, message, transport, false, findings}, stream);
}

}  // namespace muonrt::cuda
