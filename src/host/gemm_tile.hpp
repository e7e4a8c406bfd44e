#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/dtype.hpp"

namespace muonrt::host {

// The interface between the grid of tiles (gemm.cpp) and the code that computes one tile: oneDNN or
// portable loops.

/// The shape of a column panel of op(B) and of the tiles that use it.
struct PanelShape {
  int64_t depth;     // k: rows of op(B), > 0
  int64_t cols;      // columns of this panel, > 0
  int64_t rows[2];   // the two heights a tile may have, both > 0
  DType dtype;       // of A and B: f32 or bf16
  int64_t b_ld;      // of B as stored
  bool transpose_b;  // B is stored cols x depth, else depth x cols
};

/// Packs and multiplies one column panel; created once for its shape.
/// Threads: several threads may call pack and run concurrently, each with its own scratch.
/// Bits: a tile depends only on the values and on `PanelShape` without b_ld and transpose_b.
class PanelProduct {
 public:
  virtual ~PanelProduct() = default;
  /// Bytes of one packed panel.
  virtual int64_t packed_bytes() const = 0;
  /// Bytes of scratch memory that one call of pack or run needs.
  virtual int64_t scratch_bytes() const = 0;
  /// Packs the panel of B that begins at `b` into `packed` (64-byte aligned).
  virtual void pack(const void* b, void* packed, void* scratch) const = 0;
  /// c = a * panel, in f32, over the full depth; one thread.
  /// @param rows  one of PanelShape::rows.
  /// @param a     rows x depth, dense (ld = depth), any alignment of its element type.
  /// @param c     rows x cols, f32, dense, 64-byte aligned; overwritten.
  virtual void run(int64_t rows, const void* a, const void* packed, float* c,
                   void* scratch) const = 0;
};

/// An implementation of tile products.
class TileKernel {
 public:
  virtual ~TileKernel() = default;
  /// Short, for a table: "onednn", "portable".
  virtual const char* name() const = 0;
  /// Name, version and instruction set. Two processes with equal identities give bitwise identical
  /// results.
  virtual std::string identity() const = 0;
  /// True if bf16 x bf16 products with f32 sums are native to this machine.
  virtual bool supports_bf16() const = 0;
  /// Errors: INTERNAL if the library does not support the shape.
  virtual std::unique_ptr<const PanelProduct> panel(const PanelShape& shape) const = 0;
};

/// Returns oneDNN, or null if it is not built in or cannot be used on this machine.
const TileKernel* onednn_kernel();

/// Returns the portable kernel: always available, bitwise identical on every machine.
const TileKernel& portable_kernel();

/// Returns the fastest available kernel.
const TileKernel& default_kernel();

}  // namespace muonrt::host
