#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "backend/matrix_rules.hpp"
#include "base/checked.hpp"
#include "base/dtype.hpp"
#include "host/gemm_tile.hpp"
#include "host/thread_pool.hpp"

namespace muonrt::host {

/// Storage of a matrix: rows x cols, row-major, f32, bf16 or f16; ld in elements, >= cols.
struct MatrixRef {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t ld = 0;
};

/// As MatrixRef, but read-only.
struct ConstMatrixRef {
  ConstMatrixRef() = default;
  ConstMatrixRef(const void* data_in, DType dtype_in, int64_t rows_in, int64_t cols_in,
                 int64_t ld_in)
      : data(data_in), dtype(dtype_in), rows(rows_in), cols(cols_in), ld(ld_in) {}
  ConstMatrixRef(const MatrixRef& m) : ConstMatrixRef(m.data, m.dtype, m.rows, m.cols, m.ld) {}

  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t ld = 0;
};

/// C = alpha A op(B) + beta D + gamma I, summed in f32, rounded once to the dtype of C.
struct GemmArgs {
  ConstMatrixRef a;  // m x k
  ConstMatrixRef b;  // k x n, or n x k if transpose_b
  ConstMatrixRef d;  // m x n; not read if data is null or beta is 0; may be A or B
  MatrixRef c;       // m x n, overwritten; shares no memory with A, B and D
  bool transpose_b = false;
  /// Set it if the result is symmetric (A A^T, polynomials of one symmetric matrix). Only the upper
  /// triangle is computed (and read from D) and then mirrored, so C is exactly symmetric.
  bool symmetric = false;
  float alpha = 1.0f;
  float beta = 0.0f;
  float gamma = 0.0f;
};

struct PreparedGemm;

/// What products reuse from call to call: the library's objects for each shape so far, and the
/// workspace. Create one for each thread pool. Threads: one at a time.
class GemmScratch {
 public:
  /// Panels of B are packed for the kernel in groups of about this size, to limit the memory.
  static constexpr int64_t kPackedBytes = int64_t{64} << 20;

  explicit GemmScratch(const TileKernel& kernel = default_kernel(),
                       int64_t packed_bytes = kPackedBytes);
  ~GemmScratch();
  GemmScratch(const GemmScratch&) = delete;
  GemmScratch& operator=(const GemmScratch&) = delete;

  /// Returns the bytes of workspace that `gemm` needs for these shapes, dtypes and leading
  /// dimensions, and creates the objects for them, so that later calls of `gemm` with these shapes
  /// create none. Of the pointers it only checks whether B is A and whether D is null.
  /// @param threads  number of threads of the pool.
  int64_t bytes_for(const GemmArgs& args, int threads);

  /// Sets the memory that later products use. Its content may change between calls.
  void set_workspace(void* memory, int64_t bytes) {
    memory_ = memory;
    bytes_ = bytes;
  }

  const TileKernel& kernel() const { return kernel_; }

 private:
  friend void gemm(const GemmArgs& args, ThreadPool& pool, GemmScratch& scratch);
  // m, n, k, dtype of the product, ld of B, transpose_b, symmetric
  using Key = std::tuple<int64_t, int64_t, int64_t, DType, int64_t, bool, bool>;
  const PreparedGemm& prepare(const GemmArgs& args);

  const TileKernel& kernel_;
  const int64_t packed_bytes_;
  std::map<Key, std::unique_ptr<const PreparedGemm>> prepared_;
  void* memory_ = nullptr;
  int64_t bytes_ = 0;
};

/// Computes `args` on a grid of tiles that depends only on the shape. Each tile is a
/// single-threaded product over the full depth. Bits: depend on shapes, dtypes, `symmetric`,
/// factors and values; not on threads, alignment, leading dimensions, workspace or the caller's
/// floating-point environment. Errors: INVALID_ARGUMENT if shapes do not match or C overlaps an
/// input; NOT_SUPPORTED for other dtypes; INVALID_STATE if the workspace is smaller than bytes_for.
void gemm(const GemmArgs& args, ThreadPool& pool, GemmScratch& scratch);

}  // namespace muonrt::host
