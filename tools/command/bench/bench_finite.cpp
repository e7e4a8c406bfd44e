#include "command/bench/bench_finite.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "command/bench/bench_values.hpp"

namespace muonrt::tool {

int64_t not_finite(Workbench& bench, const MatrixBatch& m) {
  const int64_t one = size_of(m.dtype);
  std::atomic<int64_t> out = 0;
  bench.look(
      m.data, ((m.count - 1) * m.stride + m.rows * m.ld) * one,
      [&](const void* piece, int64_t offset, int64_t bytes) {
        const int64_t first = offset / one;  // index of the piece's first element
        in_parallel(bytes / one, [&](int64_t begin, int64_t end) {
          int64_t bad = 0;
          for (int64_t i = first + begin; i < first + end;) {
            const int64_t inside = i % m.stride, col = inside % m.ld;
            const int64_t next = std::min({i + m.ld - col, i + m.stride - inside, first + end});
            const int64_t last = std::min(i + m.cols - col, next);
            for (; inside < m.rows * m.ld && i < last; ++i)
              bad += !std::isfinite(bench_load(piece, m.dtype, i - first));
            i = next;
          }
          out += bad;
        });
      });
  return out;
}

}  // namespace muonrt::tool
