#pragma once

#include <cstdint>

namespace muonrt::train {

enum class Trans { kNo, kYes };

/// C = A B + beta C, all row-major, leading dimensions in elements.
/// @param ta  kNo: `a` is stored m x k; kYes: `a` is stored k x m and used transposed.
/// @param tb  the same for `b`: k x n, or n x k used transposed.
/// @param c   m x n; not read when beta is 0.
/// One thread does the work, whatever the OpenMP settings of the caller, which are left as they
/// were. Threads: any number of callers at once. Float runs on oneDNN where the build has it.
template <class T>
void gemm(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b,
          int64_t ldb, T beta, T* c, int64_t ldc);

/// The same by plain loops: what double, and builds without oneDNN, use.
template <class T>
void gemm_portable(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda,
                   const T* b, int64_t ldb, T beta, T* c, int64_t ldc);

/// "oneDNN" or "portable": what gemm<float> runs on.
const char* gemm_name();

}  // namespace muonrt::train
