#pragma once

#include <cublasLt.h>

#include <cstdint>

struct FakeCublasLayout {
  cudaDataType_t type;
  int64_t rows, cols, ld;
  int32_t count = 1;
  int64_t stride = 0;
};

/// The operands of D (m x n) = alpha op(A) B + beta C, all column-major.
struct Operands {
  FakeCublasLayout a, b, c, d;
  bool transposed;
  int64_t m() const { return transposed ? a.cols : a.rows; }
  int64_t k() const { return transposed ? a.rows : a.cols; }
  int64_t n() const { return b.cols; }
};

/// Computes the product with f32 sums over sixteen terms at a time, as tensor cores do.
void multiply(const Operands& operands, float alpha, const void* a, const void* b, float beta,
              const void* c, void* d);
