#include "command/bench/bench_gemm_check.hpp"

#include <algorithm>
#include <cmath>

#include "command/bench/bench_finite.hpp"
#include "command/bench/bench_values.hpp"

namespace muonrt::tool {

namespace {

constexpr int64_t kPlaces = 400;    // of all matrices together, about
constexpr int64_t kLeastLines = 3;  // rows and columns that are drawn of a matrix

int64_t drawn(uint64_t seed, int64_t matrix, int64_t draw, int64_t size) {
  if (draw < 2) return draw == 0 ? 0 : size - 1;
  const int64_t index = matrix * kPlaces + draw;
  return static_cast<int64_t>(bench_word(seed, index) % static_cast<uint64_t>(size));
}

double unit_of(DType dtype) {
  return dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kF16 ? 0x1p-12 : 0x1p-9;
}

}  // namespace

float general_value(const MatrixBatch&, int64_t index) { return bench_value(1, index); }

float zero_value(const MatrixBatch&, int64_t) { return 0; }

float symmetric_value(const MatrixBatch& m, int64_t index) {
  const int64_t row = index / m.ld % m.rows, col = index % m.ld;
  if (col >= row) return bench_value(2, index);
  return bench_value(2, index + (col - row) * m.ld + row - col);
}

GemmCheck::GemmCheck(const Product& p, const std::function<ValueOf(const MatrixBatch&)>& value_of) {
  const auto element = [](const MatrixBatch& m, ValueOf value, int64_t matrix, int64_t row,
                          int64_t col) {
    const int64_t index = matrix * m.stride + row * m.ld + col;
    return double{bench_rounded(value(m, index), m.dtype)};
  };
  const ValueOf left = value_of(p.a), right = value_of(p.b);
  const auto of_each = static_cast<double>(kPlaces) / static_cast<double>(p.c.count);
  const int64_t lines = std::max(static_cast<int64_t>(std::sqrt(of_each)), kLeastLines);
  for (int64_t matrix = 0; matrix < p.c.count; ++matrix)
    for (int64_t draw = 0; draw < lines * lines; ++draw)
      samples_.push_back({matrix, drawn(10, matrix, draw / lines, p.c.rows),
                          drawn(11, matrix, draw % lines, p.c.cols), 0, 0, 0});
  for (Sample& at : samples_) {
    double sum = 0, size = 0;
    for (int64_t k = 0; k < p.a.cols; ++k) {
      const double a = element(p.a, left, at.matrix, at.row, k);
      const double b = p.transpose_b ? element(p.b, right, at.matrix, at.col, k)
                                     : element(p.b, right, at.matrix, k, at.col);
      sum += a * b;
      size += std::abs(a * b);
    }
    sum *= double{p.alpha};
    if (p.d.data) sum += double{p.beta} * element(p.d, value_of(p.d), at.matrix, at.row, at.col);
    at.value = sum;
    // Products summed in f32, in any order: half a unit each of them could lose.
    at.allowed =
        2 * unit_of(p.c.dtype) * std::abs(sum) + 0x1p-24 * static_cast<double>(p.a.cols) * size;
    // Each part and each sum of parts is rounded: no more than the sizes of all terms, twice.
    at.allowed_in_parts = at.allowed + 2 * unit_of(p.c.dtype) * size;
  }
}

int64_t GemmCheck::wrong(Workbench& bench, const MatrixBatch& c, bool in_parts) const {
  int64_t out = not_finite(bench, c), line = -1;
  std::vector<unsigned char> got(static_cast<size_t>(c.ld * size_of(c.dtype)));
  for (const Sample& at : samples_) {
    const int64_t first = at.matrix * c.stride + at.row * c.ld;
    if (first != line)
      bench.get(got.data(), static_cast<const unsigned char*>(c.data) + first * size_of(c.dtype),
                std::ssize(got));
    line = first;
    const double value = bench_load(got.data(), c.dtype, at.col);
    // The others are counted.
    const double allowed = in_parts ? at.allowed_in_parts : at.allowed;
    out += std::isfinite(value) && std::abs(at.value - value) > allowed;
  }
  return out;
}

}  // namespace muonrt::tool
