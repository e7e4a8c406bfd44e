#pragma once

#include <cstdint>

#include "train/gemm.hpp"

namespace muonrt::train {

// A linear layer y = x w^T on contiguous rows: x is rows x in, w is out x in, y is rows x out.
// Write::kAdd keeps what the result already holds.

enum class Write { kOver, kAdd };

template <class T>
void linear(int64_t rows, int64_t in, int64_t out, const T* x, const T* w, T* y,
            Write write = Write::kOver) {
  gemm(Trans::kNo, Trans::kYes, rows, out, in, x, in, w, in, write == Write::kAdd ? T{1} : T{0}, y,
       out);
}

template <class T>
void linear_backward_input(int64_t rows, int64_t in, int64_t out, const T* dy, const T* w, T* dx,
                           Write write = Write::kOver) {
  gemm(Trans::kNo, Trans::kNo, rows, in, out, dy, out, w, in, write == Write::kAdd ? T{1} : T{0},
       dx, in);
}

/// dw is added to.
template <class T>
void linear_backward_weight(int64_t rows, int64_t in, int64_t out, const T* dy, const T* x, T* dw) {
  gemm(Trans::kYes, Trans::kNo, out, in, rows, dy, out, x, in, T{1}, dw, in);
}

}  // namespace muonrt::train
