#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace muonrt::train {

/// A factor of a product: a row-major matrix or, if `transposed` is set, its transpose.
struct Factor {
  const float* data;
  int64_t rows, cols, ld;
  bool transposed = false;
};

/// Computes matrix products on the calling thread, with the library's host code. Threads: each
/// thread needs its own object.
class Products {
 public:
  Products();
  ~Products();

  /// Computes C = op(A) op(B) + D. C must not overlap A, B and D.
  /// @param ld  the leading dimension of C and D, in elements.
  /// @param d   D; null means zero.
  void multiply(const Factor& a, const Factor& b, float* c, int64_t ld, const float* d = nullptr);

  // Computes a linear layer, y = x w^T (+ d), for contiguous rows. x is rows x in, w is out x in,
  // and y is rows x out.

  void linear(int64_t rows, int64_t in, int64_t out, const float* x, const float* w, float* y,
              const float* d = nullptr) {
    multiply({x, rows, in, in}, {w, out, in, in, true}, y, out, d);
  }
  /// Computes dx = dy w (+ d).
  void input_gradient(int64_t rows, int64_t in, int64_t out, const float* dy, const float* w,
                      float* dx, const float* d = nullptr) {
    multiply({dy, rows, out, out}, {w, out, in, in}, dx, in, d);
  }
  /// Computes dw = dy^T x.
  void weight_gradient(int64_t rows, int64_t in, int64_t out, const float* dy, const float* x,
                       float* dw) {
    multiply({dy, rows, out, out, true}, {x, rows, in, in}, dw, in);
  }

 private:
  const float* transposed(const Factor& a);

  struct Host;  // memory that the library's products reuse between calls

  std::vector<float> transposed_;
  std::unique_ptr<Host> host_;
};

}  // namespace muonrt::train
