// Copies between messages and whole matrices: unpack copies a message to a matrix of the same
// dtype, and pack copies a matrix to a message, casts it and checks for non-finite values. Both use
// the same lists. A block of a message is rows x cols, dense. The matrix is stored with its short
// side first. A block of a tall matrix is therefore transposed, in tiles of 64 x 64
// (cuda/kernels/transpose.cuh). A thread block processes one job. A NaN that is packed or
// transposed becomes the same NaN as on the host: 0x7fff in a two-byte dtype, and unchanged in a
// four-byte dtype.

#include "cuda/device/launch.hpp"
#include "cuda/kernels/findings.cuh"
#include "cuda/kernels/kernels.hpp"
#include "cuda/kernels/rectangle.cuh"
#include "cuda/kernels/transpose.cuh"

namespace muonrt::cuda {

namespace {

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16;

/// Minimum number of thread blocks on an SM. With five blocks, each thread can use at most 48
/// registers.
constexpr int kBlocks = 5;

struct CopyArguments {
  Table<MatrixItem> table;
  TypedBuffer message;  // unpack only reads it
  Findings* findings;   // null for unpack
};

template <DType kFrom, DType kTo>
struct CastBody {
  Rows from, to;
  WordBits bits;

  template <int N>
  __device__ void run(int row, int col, Lanes lanes) {
    const Values<N> x = widen(load<N>(from.data, kFrom, from.index(row, col)), kFrom);
    for (int i = 0; i < N; ++i) bits.check(std::bit_cast<uint32_t>(x.x[i]));
    store(to.data, kTo, to.index(row, col), x, lanes);
  }
  __device__ bool bad() const { return bits.bad(kTo); }
};

/// Copies elements that have the same size as kLike and keep their dtype. `Bits` is a class of
/// cuda/kernels/bits.cuh.
template <DType kLike, class Bits>
struct CopyBody {
  Rows from, to;
  Bits bits;

  template <int N>
  __device__ void run(int row, int col, Lanes lanes) {
    Raw<N> raw = load<N>(from.data, kLike, from.index(row, col));
    bits.check(raw);
    store_raw(to.data, kLike, to.index(row, col), raw, lanes);
  }
  __device__ bool bad() const { return bits.bad(); }
};

/// @return  whether a written value is non-finite.
template <class Body>
__device__ inline bool each(const Job& job, Body body) {
  const bool vectors = vectors_fit(body.from, job.rows) && vectors_fit(body.to, job.rows);
  for_elements(job.rows, job.cols, vectors, body);
  return body.bad();
}

__device__ inline void unpack_straight(const Job& job, const Rows& from, const Rows& to) {
  if (from.dtype == kF32) {
    each(job, CopyBody<kF32, AnyBits>{from, to, {}});
  } else {
    each(job, CopyBody<kBF16, AnyBits>{from, to, {}});
  }
}

__device__ inline bool pack_straight(const Job& job, const Rows& from, const Rows& to) {
  if (to.dtype == kF32) {
    if (from.dtype == kF32) return each(job, CopyBody<kF32, WordBits>{from, to, {}});
    return from.dtype == kBF16 ? each(job, CastBody<kBF16, kF32>{from, to, {}})
                               : each(job, CastBody<kF16, kF32>{from, to, {}});
  }
  if (to.dtype == kF16) {
    if (from.dtype == kF16)
      return each(job, CopyBody<kF16, HalfBits>{from, to, HalfBits(kF16, kF16)});
    return from.dtype == kF32 ? each(job, CastBody<kF32, kF16>{from, to, {}})
                              : each(job, CastBody<kBF16, kF16>{from, to, {}});
  }
  if (from.dtype == kBF16)
    return each(job, CopyBody<kBF16, HalfBits>{from, to, HalfBits(kBF16, kBF16)});
  return from.dtype == kF32 ? each(job, CastBody<kF32, kBF16>{from, to, {}})
                            : each(job, CastBody<kF16, kBF16>{from, to, {}});
}

template <bool kUnpack>
__global__ void __launch_bounds__(kThreads, kBlocks) copy_rectangles_kernel(CopyArguments a) {
  __shared__ Tile tile;
  const Job job = a.table.jobs[blockIdx.x];
  const MatrixItem item = a.table.items[job.item];
  const Rows message{a.message.data, a.message.dtype,
                     item.packed_offset + job.row * item.packed_ld + job.col, item.packed_ld};
  const int64_t row = item.transposed ? job.col : job.row,
                col = item.transposed ? job.row : job.col;
  const Rows matrix{item.data, kUnpack ? a.message.dtype : item.dtype,
                    item.offset + row * item.ld + col, item.ld};
  if constexpr (kUnpack) {
    if (item.transposed) {
      transpose(tile, TransposedTile<true>{message, matrix, job.rows, job.cols});
    } else {
      unpack_straight(job, message, matrix);
    }
  } else {
    const bool bad =
        item.transposed
            ? transpose(tile, TransposedTile<false>{matrix, message, job.cols, job.rows})
            : pack_straight(job, matrix, message);
    if (__syncthreads_or(bad) && threadIdx.x == 0) note_nonfinite(*a.findings);
  }
}

template <bool kUnpack>
void copy_rectangles(const CopyArguments& arguments, cudaStream_t stream) {
  if (arguments.table.job_count == 0) return;
  launch(kUnpack ? "unpack" : "pack", copy_rectangles_kernel<kUnpack>,
         grid_of(arguments.table.job_count), kThreads, arguments, stream);
}

}  // namespace

void unpack(const Table<MatrixItem>& table, ConstTypedBuffer message, cudaStream_t stream) {
  copy_rectangles<true>({table, {const_cast<void*>(message.data), message.dtype}, nullptr}, stream);
}

void pack(const Table<MatrixItem>& table, TypedBuffer message, Findings* findings,
          cudaStream_t stream) {
  copy_rectangles<false>({table, message, findings}, stream);
}

}  // namespace muonrt::cuda
