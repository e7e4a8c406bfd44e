#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/dtype.hpp"
#include "host/isa.hpp"

namespace muonrt::host {

// The interface between the grid of tiles (gemm.cpp) and the code that computes a single tile. This
// code uses AVX2 or AVX-512 instructions, oneDNN, or portable loops.

/// The largest number of rows or columns of a tile of a small or symmetric product.
inline constexpr int64_t kSmallTile = 128;

/// The shape of a column panel of op(B), and of the tiles that use this panel.
struct PanelShape {
  int64_t depth;     // k, the number of rows of op(B), > 0
  int64_t cols;      // number of columns of this panel, > 0
  int64_t rows[2];   // the two heights that a tile may have, both > 0
  DType dtype;       // dtype of A and B: f32 or bf16
  int64_t b_ld;      // leading dimension of B as stored
  bool transpose_b;  // true if B is stored as cols x depth instead of depth x cols
};

/// Packs and multiplies one column panel. One object is created for each panel shape.
/// Threads: multiple threads may call pack() and run() at the same time, each with its own scratch
/// memory.
/// Results: bit for bit, a tile depends only on the values and on the fields of PanelShape other
/// than b_ld and transpose_b.
class PanelProduct {
 public:
  virtual ~PanelProduct() = default;
  /// Returns true if run() accepts any number of rows up to the larger height, and any `first_col`.
  /// Otherwise `rows` must be one of PanelShape::rows, and `first_col` must be 0.
  virtual bool any_rows() const { return false; }
  /// Returns the size of one packed panel in bytes.
  virtual int64_t packed_bytes() const = 0;
  /// Returns the bytes of scratch memory that one call to pack() or run() needs.
  virtual int64_t scratch_bytes() const = 0;
  /// Packs the panel of B that begins at `b` into `packed`, which must be aligned to 64 bytes.
  virtual void pack(const void* b, void* packed, void* scratch) const = 0;
  /// Computes c = a * panel in f32, over the full depth, on the calling thread.
  /// @param a          rows x depth, dense (ld = depth), with any alignment of its element type.
  /// @param first_col  first column whose result is needed.
  /// @param c          rows x cols, f32, dense, aligned to 64 bytes; overwritten.
  virtual void run(int64_t rows, const void* a, const void* packed, int64_t first_col, float* c,
                   void* scratch) const = 0;
};

/// An implementation of tile products.
class TileKernel {
 public:
  virtual ~TileKernel() = default;
  /// Returns a short name for tables: "avx512", "avx2", "onednn" or "portable".
  virtual const char* name() const = 0;
  /// Returns the name, version and instruction set. Two processes with equal strings compute
  /// bitwise identical results.
  virtual std::string identity() const = 0;
  /// Returns whether this machine has instructions for bf16 x bf16 products with f32 sums.
  virtual bool supports_bf16() const = 0;
  /// Returns whether the kernel's bf16 products use a matrix unit (AMX).
  virtual bool has_matrix_unit() const { return false; }
  /// Returns the number of rows or columns up to which a tile of a large product is fast.
  virtual int64_t largest_tile(DType) const { return 256; }
  /// Creates the product for a panel shape. Errors: INTERNAL if the library does not support the
  /// shape.
  virtual std::unique_ptr<const PanelProduct> panel(const PanelShape& shape) const = 0;
};

/// Returns the oneDNN kernel, or null if it is not built in or cannot be used on this machine.
const TileKernel* onednn_kernel();

/// Returns the kernel for AVX2 or AVX-512, or null if this machine does not support the instruction
/// set. For bf16 products, the AVX2 kernel, and on machines with AMX also the AVX-512 kernel, use
/// oneDNN if it is available.
const TileKernel* vector_kernel(Isa isa);

/// Returns the portable kernel. It is available on every machine, and its results are bitwise
/// identical on every machine.
const TileKernel& portable_kernel();

/// Returns the fastest available kernel.
const TileKernel& default_kernel();

}  // namespace muonrt::host
