#include "muonrt/bench_ns_check.hpp"

#include <algorithm>
#include <cmath>

#include "muonrt/bench_finite.hpp"
#include "muonrt/bench_values.hpp"

namespace muonrt::tool {

namespace {

constexpr int64_t kMostVisits = int64_t{1} << 30, kMostMatrices = 4;
constexpr int64_t kLeastColumns = 256;  // of a thread
constexpr int64_t kLeastDirections = 2, kMostDirections = 8;

/// Of one matrix, which is in host memory.
int64_t wrong_of(const std::vector<unsigned char>& o, const MatrixBatch& m, int64_t directions,
                 bool zeros) {
  std::vector<float> images(static_cast<size_t>(directions * m.cols));
  in_parallel(
      m.cols,
      [&](int64_t begin, int64_t end) {
        std::vector<float> row(static_cast<size_t>(end - begin));
        for (int64_t i = 0; i < m.rows; ++i) {
          for (int64_t j = begin; j < end; ++j)
            row[static_cast<size_t>(j - begin)] = bench_load(o.data(), m.dtype, i * m.ld + j);
          for (int64_t d = 0; d < directions; ++d) {
            const float v = bench_value(static_cast<uint64_t>(100 + d), i);
            float* const image = images.data() + d * m.cols + begin;
            for (size_t j = 0; j < row.size(); ++j) image[j] += v * row[j];
          }
        }
      },
      kLeastColumns);
  int64_t out = 0;
  for (int64_t d = 0; d < directions; ++d) {
    double before = 0, after = 0;
    for (int64_t i = 0; i < m.rows; ++i)
      before += std::pow(bench_value(static_cast<uint64_t>(100 + d), i), 2);
    for (int64_t j = 0; j < m.cols; ++j)
      after += std::pow(images[static_cast<size_t>(d * m.cols + j)], 2);
    const double ratio = std::sqrt(after / before);
    out += zeros ? ratio != 0 : !(ratio > 0.5 && ratio < 1.3);
  }
  return out;
}

}  // namespace

int64_t wrong_directions(Workbench& bench, const std::vector<MatrixBatch>& results, bool zeros) {
  int64_t out = 0;
  for (const MatrixBatch& o : results) {
    out += not_finite(bench, o);
    const int64_t most = kMostVisits / (o.rows * o.cols * std::ssize(results));
    const int64_t matrices =
        std::clamp<int64_t>(most / kLeastDirections, 1, std::min(o.count, kMostMatrices));
    const int64_t directions = std::clamp(most / matrices, kLeastDirections, kMostDirections);
    std::vector<unsigned char> got(static_cast<size_t>(o.rows * o.ld * size_of(o.dtype)));
    for (int64_t k = 0; k < matrices; ++k) {
      const int64_t which = matrices == 1 ? o.count - 1 : k * (o.count - 1) / (matrices - 1);
      bench.get(got.data(),
                static_cast<const unsigned char*>(o.data) + which * o.stride * size_of(o.dtype),
                std::ssize(got));
      out += wrong_of(got, o, directions, zeros);
    }
  }
  return out;
}

}  // namespace muonrt::tool
