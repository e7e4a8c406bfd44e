#include "train/gemm.hpp"

#if MUONRT_TRAIN_ONEDNN
#include <dnnl.h>

// Of libgomp, on which oneDNN runs; declared as src/host/gemm_onednn.cpp does.
extern "C" int omp_get_max_threads(void);
extern "C" void omp_set_num_threads(int);
#endif

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "train/clones.hpp"

namespace muonrt::train {
namespace {

// One register tile: kRows rows of A times a panel of B that is kLanes wide.
constexpr int64_t kRows = 4;
template <class T>
constexpr int64_t kLanes = 64 / sizeof(T);

template <class T>
struct Vector {
  typedef T type __attribute__((vector_size(64)));
};

// panel[l * kLanes + j] = B(l, j0 + j), zero past the last column.
template <class T>
void pack_panel(Trans tb, int64_t k, int64_t columns, const T* b, int64_t ldb, int64_t j0,
                T* panel) {
  for (int64_t l = 0; l < k; ++l) {
    T* row = panel + l * kLanes<T>;
    for (int64_t j = 0; j < columns; ++j) {
      row[j] = tb == Trans::kNo ? b[l * ldb + j0 + j] : b[(j0 + j) * ldb + l];
    }
    std::fill(row + columns, row + kLanes<T>, T{0});
  }
}

// tile[r][j] = sum over l of A(r, l) panel(l, j), with A(r, l) at a[r * row_step + l * depth_step].
template <class T>
MUONRT_TRAIN_INLINE void tile_body(int64_t k, const T* const* rows, int64_t depth_step,
                                   const T* panel, T* tile) {
  using V = typename Vector<T>::type;
  V sums[kRows] = {};
  for (int64_t l = 0; l < k; ++l) {
    V b;
    std::memcpy(&b, panel + l * kLanes<T>, sizeof b);
    for (int64_t r = 0; r < kRows; ++r) sums[r] += rows[r][l * depth_step] * b;
  }
  std::memcpy(tile, sums, sizeof sums);
}

MUONRT_TRAIN_CLONES void compute_tile(int64_t k, const float* const* rows, int64_t depth_step,
                                      const float* panel, float* tile) {
  tile_body(k, rows, depth_step, panel, tile);
}

MUONRT_TRAIN_CLONES void compute_tile(int64_t k, const double* const* rows, int64_t depth_step,
                                      const double* panel, double* tile) {
  tile_body(k, rows, depth_step, panel, tile);
}

template <class T>
void store_tile(const T* tile, int64_t rows, int64_t columns, T beta, T* c, int64_t ldc) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < columns; ++j) {
      T& out = c[r * ldc + j];
      const T sum = tile[r * kLanes<T> + j];
      out = beta == T{0} ? sum : sum + beta * out;
    }
  }
}

#if MUONRT_TRAIN_ONEDNN
// oneDNN takes its number of threads from the calling thread's OpenMP setting.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};
#endif

}  // namespace

template <class T>
void gemm_portable(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda,
                   const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  thread_local std::vector<T> panel;
  panel.resize(static_cast<size_t>(k * kLanes<T>));
  T tile[kRows * kLanes<T>];
  const int64_t row_step = ta == Trans::kNo ? lda : 1;
  const int64_t depth_step = ta == Trans::kNo ? 1 : lda;
  for (int64_t j0 = 0; j0 < n; j0 += kLanes<T>) {
    const int64_t columns = std::min(kLanes<T>, n - j0);
    pack_panel(tb, k, columns, b, ldb, j0, panel.data());
    for (int64_t i0 = 0; i0 < m; i0 += kRows) {
      const int64_t count = std::min(kRows, m - i0);
      const T* rows[kRows];  // a short last tile repeats its last row and stores it once
      for (int64_t r = 0; r < kRows; ++r) rows[r] = a + (i0 + std::min(r, count - 1)) * row_step;
      compute_tile(k, rows, depth_step, panel.data(), tile);
      store_tile(tile, count, columns, beta, c + i0 * ldc + j0, ldc);
    }
  }
}

template void gemm_portable<float>(Trans, Trans, int64_t, int64_t, int64_t, const float*, int64_t,
                                   const float*, int64_t, float, float*, int64_t);
template void gemm_portable<double>(Trans, Trans, int64_t, int64_t, int64_t, const double*, int64_t,
                                    const double*, int64_t, double, double*, int64_t);

template <>
void gemm<float>(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                 const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
#if MUONRT_TRAIN_ONEDNN
  const OneThread guard;
  const dnnl_status_t status =
      dnnl_sgemm(ta == Trans::kNo ? 'N' : 'T', tb == Trans::kNo ? 'N' : 'T', m, n, k, 1.0f, a, lda,
                 b, ldb, beta, c, ldc);
  if (status != dnnl_success) {
    throw std::runtime_error("oneDNN refused a product of " + std::to_string(m) + " x " +
                             std::to_string(n) + " x " + std::to_string(k) + " (status " +
                             std::to_string(static_cast<int>(status)) + ")");
  }
#else
  gemm_portable(ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc);
#endif
}

template <>
void gemm<double>(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, const double* a, int64_t lda,
                  const double* b, int64_t ldb, double beta, double* c, int64_t ldc) {
  gemm_portable(ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc);
}

const char* gemm_name() {
#if MUONRT_TRAIN_ONEDNN
  return "oneDNN";
#else
  return "portable";
#endif
}

}  // namespace muonrt::train
