#include "command/bench/bench_ns_check.hpp"

#include <algorithm>
#include <cmath>

#include "command/bench/bench_finite.hpp"
#include "command/bench/bench_values.hpp"

namespace muonrt::tool {

namespace {

constexpr int64_t kGroup = 32;  // lines: with 16 directions the mean of squares is known to 6%

double direction(int64_t number, int64_t index) {
  return double{
      bench_rounded(bench_value(static_cast<uint64_t>(100 + number), index), DType::kBF16)};
}

/// What one rounding takes an image by, relative to it. Of f32 it is the sums of a product, of
/// thousands of terms in another order.
double unit_of(DType dtype) {
  return dtype == DType::kF32 ? 0x1p-18 : dtype == DType::kF16 ? 0x1p-12 : 0x1p-9;
}

/// Five steps in another order of sums took groups apart by 3 to 6 units in bf16, by 3 to 5 in f16,
/// up to 2 in f32 (oneDNN beside plain loops, 512 to 2048), none of a matrix by 1.4 times the
/// median of its groups. Where roundings are as large as a small singular value, all groups of a
/// matrix share what they turn: two directions of a small one are more than that.
constexpr double kLeastUnits = 5, kMostUnits = 50, kBesideOthers = 4;

double square(double x) { return x * x; }

}  // namespace

NsCheck::Images NsCheck::images(Workbench& bench, const MatrixBatch& o, bool left) {
  const int64_t depth = left ? o.rows : o.cols, lines = left ? o.cols : o.rows;
  // Of other dtypes than the result: no provider of a GPU has such products but in plain loops,
  // which need nothing that is reserved. On the host what is reserved is for products of one dtype.
  const bool on_host = bench.device().host_reaches_memory();
  const DType dtype = on_host && o.dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
  std::vector<unsigned char> made(static_cast<size_t>(kDirections * depth * size_of(dtype)));
  for (int64_t d = 0; d < kDirections; ++d)
    for (int64_t i = 0; i < depth; ++i)
      bench_store(made.data(), dtype, d * depth + i, static_cast<float>(direction(d, i)));
  const Buffer from(bench.device(), std::ssize(made));
  bench.put(from.data(), made.data(), from.bytes());
  const Buffer to(bench.device(), o.count * kDirections * lines * int64_t{sizeof(float)});
  Product p;
  p.a = {from.data(), dtype, kDirections, depth, depth, o.count, 0};  // for all matrices
  p.b = o;
  p.c = {to.data(), DType::kF32, kDirections, lines, lines, o.count, kDirections * lines};
  p.transpose_b = !left;
  if (on_host)
    for (const DType of : {o.dtype, DType::kF32})
      bench.ops().reserve(kDirections, lines, depth, of);
  bench.ops().multiply(bench.stream(), p);
  Images out{lines, std::vector<float>(static_cast<size_t>(to.bytes() / int64_t{sizeof(float)}))};
  bench.get(out.values.data(), to.data(), to.bytes());
  return out;
}

NsCheck::Seen NsCheck::look(Workbench& bench, const MatrixBatch& o) {
  Seen out{{images(bench, o, true), images(bench, o, false)}, {}};
  out.finite.assign(static_cast<size_t>(o.count), true);
  for (const Images& side : out.sides)
    for (size_t i = 0; i < side.values.size(); ++i)
      if (!std::isfinite(side.values[i]))
        out.finite[i / (side.values.size() / out.finite.size())] = false;
  return out;
}

bool NsCheck::near_orthogonal(const Images& left, int64_t rows, int64_t matrix) const {
  double before = 0, after = 0;
  for (int64_t d = 0; d < kDirections; ++d) {
    for (int64_t i = 0; i < rows; ++i) before += square(direction(d, i));
    for (int64_t j = 0; j < left.lines; ++j) after += square(left.at(matrix, d, j));
  }
  const double ratio = std::sqrt(after / before);
  return zeros_ ? ratio == 0 : ratio > 0.5 && ratio < 1.3;
}

int64_t NsCheck::wrong_groups(const Images& now, const Images& first, int64_t matrix, int64_t rows,
                              double unit) {
  std::vector<double> apart;
  for (int64_t begin = 0; begin < now.lines; begin += kGroup) {
    double difference = 0, size = 0;
    for (int64_t d = 0; d < kDirections; ++d)
      for (int64_t i = begin; i < std::min(begin + kGroup, now.lines); ++i) {
        difference += square(now.at(matrix, d, i) - first.at(matrix, d, i));
        size += square(first.at(matrix, d, i));
      }
    apart.push_back(difference == 0 ? 0 : std::sqrt(difference / size));
  }
  auto sorted = apart;
  const auto middle = sorted.begin() + (std::ssize(sorted) - 1) / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  const double turned = std::min(1.0, 2 / std::sqrt(static_cast<double>(rows)));
  const double allowed =
      std::clamp(kBesideOthers * *middle, kLeastUnits * unit, std::max(turned, kMostUnits * unit));
  return std::count_if(apart.begin(), apart.end(), [&](double one) { return !(one <= allowed); });
}

int64_t NsCheck::wrong(Workbench& bench, const std::vector<MatrixBatch>& results) {
  const bool compare = has_seen();
  int64_t out = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const MatrixBatch& o = results[i];
    Seen now = look(bench, o);
    const auto spoilt = std::count(now.finite.begin(), now.finite.end(), false);
    if (spoilt > 0) out += std::max<int64_t>(spoilt, not_finite(bench, o));
    for (int64_t m = 0; m < o.count; ++m) {
      const auto at = static_cast<size_t>(m);
      if (!now.finite[at]) continue;
      out += !near_orthogonal(now.sides[0], o.rows, m);
      if (!compare || !first_[i].finite[at]) continue;
      for (size_t side = 0; side < 2; ++side)
        out += wrong_groups(now.sides[side], first_[i].sides[side], m, o.rows, unit_of(o.dtype));
    }
    if (!compare) first_.push_back(std::move(now));
  }
  return out;
}

}  // namespace muonrt::tool
