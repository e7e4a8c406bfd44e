#include <cmath>

#include "backend/norm_rules.hpp"
#include "host/dtype_dispatch.hpp"
#include "host/host_ops.hpp"
#include "host/host_stream.hpp"
#include "host/norm_passes.hpp"

namespace muonrt::host {

namespace {

template <class T>
T* row_at(const MatrixBatch& batch, int64_t matrix, int64_t row) {
  return static_cast<T*>(batch.data) + matrix * batch.stride + row * batch.ld;
}

}  // namespace

void HostOps::scale_rows(Stream& stream, const MatrixBatch& gram, const MatrixBatch& x,
                         const MatrixBatch& factors, float safety) {
  const int64_t m = gram.rows;
  MUONRT_CHECK_INTERNAL(gram.cols == m && x.rows == m && factors.cols == m && factors.rows == 1 &&
                            factors.dtype == DType::kF32 && x.dtype == gram.dtype &&
                            x.count == gram.count && factors.count == gram.count && safety > 0.0f &&
                            std::isfinite(safety),
                        "row factors of ", gram.count, " of ", x.rows, " x ", x.cols, ", Gram ",
                        gram.rows, " x ", gram.cols, ", safety ", safety);
  if (gram.count == 0 || m == 0) return;
  host_stream(stream).enqueue(Task([=, this] {
    with_iterate(gram.dtype, [&](auto type) {
      using T = decltype(type);
      // All factors of a matrix before any of its rows is changed.
      spread(gram.count * m, [&](int64_t i, int) {
        const float sum =
            run_pass<AbsoluteSumPass<T>>(isa_, row_at<const T>(gram, i / m, i % m), m);
        *(row_at<float>(factors, i / m, 0) + i % m) = row_factor(sum, safety);
      });
      spread(gram.count * m, [&](int64_t i, int) {
        const float* all = row_at<float>(factors, i / m, 0);
        run_pass<FactorPass<T>>(isa_, row_at<T>(x, i / m, i % m), x.cols, all[i % m]);
        run_pass<FactorsPass<T>>(isa_, row_at<T>(gram, i / m, i % m), all, m, all[i % m]);
      });
    });
  }));
}

}  // namespace muonrt::host
