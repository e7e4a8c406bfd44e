#include "command/bench/bench_ns_check.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "command/bench/bench_values.hpp"

namespace muonrt::tool {

namespace {

constexpr int64_t kDirections = 16;  // a GPU's portable loops compute 16 rows as one block
constexpr int64_t kGroup = 32;  // columns; the mean of 16 x 32 squares has an uncertainty of 6%

using Images = std::span<const float>;

double direction(int64_t number, int64_t index) {
  return double{
      bench_rounded(bench_value(static_cast<uint64_t>(100 + number), index), DType::kBF16)};
}

/// Returns the relative rounding error of an element of an image. For f32, this includes the error
/// of summing thousands of terms in a different order.
double image_unit(DType dtype) { return dtype == DType::kF32 ? 0x1p-18 : unit_of(dtype); }

/// Limits for the change of a group, in units of image_unit. In measurements (five steps, oneDNN
/// and portable loops, 512 to 2048), sums in a different order changed groups by 3 to 6 units in
/// bf16, 3 to 5 units in f16 and up to 2 units in f32. No group changed by more than 1.4 times the
/// median of its matrix. Rounding errors that are as large as a small singular value rotate its
/// singular vectors, and therefore change all groups of the matrix. The limits allow for two such
/// rotations.
constexpr double kLeastUnits = 5, kMaxUnits = 50, kTimesMedian = 4;

double square(double x) { return x * x; }

std::vector<float> images_of(Workbench& bench, const MatrixBatch& o) {
  // The dtype of these products may differ from the dtype of the result. On a GPU, it is always
  // bf16, because for other dtypes each provider uses portable loops, which need no reservation. On
  // the host, reservations depend on the dtype.
  const bool on_host = bench.device().host_reaches_memory();
  const DType dtype = on_host && o.dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
  const Buffer from(bench.device(), kDirections * o.rows * size_of(dtype));
  bench.put_values(from.data(), dtype, kDirections * o.rows, [&](int64_t index) {
    return static_cast<float>(direction(index / o.rows, index % o.rows));
  });
  const int64_t elements = kDirections * o.cols;  // number of elements in the images of one matrix
  const Buffer to(bench.device(), o.count * elements * int64_t{sizeof(float)});
  Product p;
  p.a = {from.data(), dtype, kDirections, o.rows, o.rows, o.count, 0};  // used for all matrices
  p.b = o;
  p.c = {to.data(), DType::kF32, kDirections, o.cols, o.cols, o.count, elements};
  if (on_host)
    for (const DType of : {o.dtype, DType::kF32})
      bench.ops().reserve(kDirections, o.cols, o.rows, of);
  bench.ops().multiply(bench.stream(), p);
  std::vector<float> out(static_cast<size_t>(o.count * elements));
  bench.get(out.data(), to.data(), to.bytes());
  return out;
}

bool finite(Images images) {
  return std::all_of(images.begin(), images.end(), [](float x) { return std::isfinite(x); });
}

bool nearly_orthogonal(Images images, int64_t rows) {
  double before = 0, after = 0;
  for (int64_t i = 0; i < kDirections * rows; ++i) before += square(direction(i / rows, i % rows));
  for (const float x : images) after += square(double{x});
  const double ratio = std::sqrt(after / before);
  return ratio > 0.5 && ratio < 1.3;
}

int64_t wrong_groups(Images now, Images first, const MatrixBatch& o) {
  std::vector<double> changes;
  for (int64_t begin = 0; begin < o.cols; begin += kGroup) {
    double difference = 0, size = 0;
    for (int64_t d = 0; d < kDirections; ++d)
      for (int64_t col = begin; col < std::min(begin + kGroup, o.cols); ++col) {
        const auto at = static_cast<size_t>(d * o.cols + col);
        difference += square(double{now[at]} - double{first[at]});
        size += square(double{first[at]});
      }
    changes.push_back(difference == 0 ? 0 : std::sqrt(difference / size));
  }
  auto sorted = changes;
  const auto middle = sorted.begin() + (std::ssize(sorted) - 1) / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  const double unit = image_unit(o.dtype);
  const double turned = std::min(1.0, 2 / std::sqrt(static_cast<double>(o.rows)));
  const double allowed =
      std::clamp(kTimesMedian * *middle, kLeastUnits * unit, std::max(turned, kMaxUnits * unit));
  return std::count_if(changes.begin(), changes.end(), [&](double x) { return !(x <= allowed); });
}

}  // namespace

int64_t NsCheck::wrong(Workbench& bench, const std::vector<MatrixBatch>& results) {
  const bool compare = has_seen();
  int64_t out = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const MatrixBatch& o = results[i];
    std::vector<float> all = images_of(bench, o);
    const auto elements = static_cast<size_t>(kDirections * o.cols);
    int64_t spoilt = 0;
    for (size_t m = 0; m < static_cast<size_t>(o.count); ++m) {
      const auto now = Images(all).subspan(m * elements, elements);
      if (!finite(now)) {
        ++spoilt;
        continue;
      }
      out += !nearly_orthogonal(now, o.rows);
      if (!compare) continue;
      const auto first = Images(first_[i]).subspan(m * elements, elements);
      if (finite(first)) out += wrong_groups(now, first, o);
    }
    if (spoilt > 0) out += std::max(spoilt, bench.not_finite(o));
    if (!compare) first_.push_back(std::move(all));
  }
  return out;
}

}  // namespace muonrt::tool
