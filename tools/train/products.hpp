#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace muonrt::train {

/// A factor of a product: a row-major matrix as it is stored, used transposed if `transposed`.
template <class T>
struct Factor {
  const T* data;
  int64_t rows, cols, ld;
  bool transposed = false;
};

/// Matrix products on the calling thread. float: the library's host products. double, which serves
/// the gradient check: plain loops.
/// Threads: one object for each thread.
template <class T>
class Products {
 public:
  Products();
  ~Products();

  /// C = op(A) op(B) + D. C shares no memory with the others.
  /// @param ld  of C and D, in elements.
  /// @param d   null: no addend.
  void multiply(const Factor<T>& a, const Factor<T>& b, T* c, int64_t ld, const T* d = nullptr);

  // A linear layer y = x w^T (+ d) on contiguous rows: x is rows x in, w is out x in, y rows x out.

  void linear(int64_t rows, int64_t in, int64_t out, const T* x, const T* w, T* y,
              const T* d = nullptr) {
    multiply({x, rows, in, in}, {w, out, in, in, true}, y, out, d);
  }
  /// dx = dy w (+ d)
  void input_gradient(int64_t rows, int64_t in, int64_t out, const T* dy, const T* w, T* dx,
                      const T* d = nullptr) {
    multiply({dy, rows, out, out}, {w, out, in, in}, dx, in, d);
  }
  /// dw = dy^T x
  void weight_gradient(int64_t rows, int64_t in, int64_t out, const T* dy, const T* x, T* dw) {
    multiply({dy, rows, out, out, true}, {x, rows, in, in}, dw, in);
  }

 private:
  const T* transposed(const Factor<T>& a);

  struct Host;  // what the library's products reuse from call to call

  std::vector<T> transposed_;
  std::unique_ptr<Host> host_;
};

}  // namespace muonrt::train
