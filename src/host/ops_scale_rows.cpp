#include <cmath>

#include "backend/norm_rules.hpp"
#include "backend/op_checks.hpp"
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
                         const MatrixBatch& factors, const AolRule& rule) {
  check_scale_rows(gram, x, factors, rule);
  const int64_t m = gram.rows;
  if (gram.count == 0 || m == 0) return;
  host_stream(stream).enqueue(Task([=, this] {
    with_iterate(gram.dtype, [&](auto type) {
      using T = decltype(type);
      // All factors of a matrix must be computed before its rows change.
      spread(gram.count * m, [&](int64_t i, int) {
        const float sum =
            run_pass<AbsoluteSumPass<T>>(isa_, row_at<const T>(gram, i / m, i % m), m);
        *(row_at<float>(factors, i / m, 0) + i % m) = row_factor(sum, rule);
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
