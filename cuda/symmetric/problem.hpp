#pragma once

#include <cstdint>

#include "backend/ops.hpp"
#include "cuda/symmetric/job_list.hpp"

namespace muonrt::cuda {

/// A batch of products of 16-bit elements in the form that kernels read. Each product is either C =
/// alpha A B^T + beta D + gamma I with a symmetric n x n result, or the dense product C = alpha A B
/// + beta D with a result of `rows` x n. `ld` and `stride` count elements.
struct SymmetricProblem {
  const uint16_t *a, *b, *d;  // d is null if there is no D
  uint16_t* c;
  int64_t a_stride, b_stride, c_stride, d_stride;
  int32_t a_ld, b_ld, c_ld, d_ld;
  int32_t n, k;
  float alpha, beta, gamma;
  int32_t slices;
  bool same;  // B is A; for a cell on the diagonal, its rows are loaded only once
  int32_t rows;
};

/// Maximum number of products in one launch. More products would not fit into a kernel's arguments.
constexpr int kProblems = 6;

/// Returns whether all operands of a product are bf16, or all are f16.
constexpr bool is_in_half(const Product& p) {
  const bool half = p.a.dtype == DType::kBF16 || p.a.dtype == DType::kF16;
  const bool reads_d = p.d.data != nullptr && p.beta != 0.0f;
  return half && p.b.dtype == p.a.dtype && p.c.dtype == p.a.dtype &&
         (!reads_d || p.d.dtype == p.a.dtype);
}
/// Returns whether the kernels can compute the product as a symmetric A B^T. The result depends
/// only on the form of the product and on the dtypes.
constexpr bool symmetric_takes(const Product& p) {
  return p.symmetric && p.transpose_b && is_in_half(p);
}
/// Like symmetric_takes, but for a dense product A B without gamma.
constexpr bool dense_takes(const Product& p) {
  return !p.symmetric && !p.transpose_b && p.gamma == 0.0f && is_in_half(p);
}

inline SymmetricShape shape_of(const Product& p) {
  return {p.c.rows, p.a.cols, p.c.count, 1, p.symmetric ? 0 : p.c.cols};
}

/// Errors: INTERNAL if a row or a matrix does not begin at a multiple of 16 bytes, as required by
/// the kernels' vector copies.
SymmetricProblem problem_of(const Product& product, int slices);

}  // namespace muonrt::cuda
