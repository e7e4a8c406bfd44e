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

/// A matrix of rows x cols elements, row-major, in f32, bf16 or f16. `ld` counts elements and is at
/// least `cols`.
struct MatrixRef {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t ld = 0;
};

/// Like MatrixRef, but read-only.
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

/// The arguments of C = alpha A op(B) + beta D + gamma I. The sum is computed in f32 and rounded
/// once to the dtype of C.
struct GemmArgs {
  ConstMatrixRef a;  // m x k
  ConstMatrixRef b;  // k x n, or n x k if transpose_b is true
  ConstMatrixRef d;  // m x n; may be A or B; not read if data is null or beta is 0
  MatrixRef c;       // m x n; overwritten; must not share memory with A, B or D
  bool transpose_b = false;
  /// Set this only if the result is symmetric, as for A A^T or polynomials of one symmetric matrix.
  /// gemm() then reads only the upper triangle of D, computes only the upper triangle of C, and
  /// copies the result to the lower triangle of C, so C is exactly symmetric.
  bool symmetric = false;
  float alpha = 1.0f;
  float beta = 0.0f;
  float gamma = 0.0f;
};

struct PreparedGemm;

/// The objects that products reuse from call to call: the workspace, and the library's objects for
/// each shape that has occurred. Create one GemmScratch for each thread pool. Threads: one at a
/// time.
class GemmScratch {
 public:
  /// Panels of B are packed in groups of approximately this number of bytes, to limit the memory.
  static constexpr int64_t kPackedBytes = int64_t{64} << 20;

  explicit GemmScratch(const TileKernel& kernel = default_kernel(),
                       int64_t packed_bytes = kPackedBytes);
  ~GemmScratch();
  GemmScratch(const GemmScratch&) = delete;
  GemmScratch& operator=(const GemmScratch&) = delete;

  /// Returns the bytes of workspace that gemm() needs for these shapes, dtypes and leading
  /// dimensions. Also creates the library's objects for them, so later calls to gemm() with these
  /// shapes create none. Does not read the matrices: the pointers only show whether B is A and
  /// whether D is null.
  /// @param threads  The number of threads in the pool.
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

/// Computes a product on a grid of tiles that depends only on the shape. A single thread computes
/// each tile, over the full depth. Bit for bit, the result depends only on shapes, dtypes,
/// `symmetric`, factors and values, and not on the number of threads, alignment, leading dimensions
/// or the workspace. Call it in the default floating-point environment, in which all tasks of
/// streams run.
/// Errors: INVALID_ARGUMENT if shapes do not match or C overlaps an input; NOT_SUPPORTED if a dtype
/// is not supported; INVALID_STATE if the workspace is smaller than bytes_for() requires.
void gemm(const GemmArgs& args, ThreadPool& pool, GemmScratch& scratch);

}  // namespace muonrt::host
