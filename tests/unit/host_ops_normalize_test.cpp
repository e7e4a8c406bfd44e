#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <limits>

#include "host_fixture.hpp"

using namespace muonrt;
using host_test::dtype_of;
using host_test::f32;
using host_test::OnHost;
using host_test::same_bits;
using host_test::ulp;
using host_test::values;

namespace {

constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1},   {1, 37},  {1, 5000}, {7, 7},
                                                   {13, 64}, {31, 33}, {65, 66},  {200, 1031}};

/// Elements of a dense rows x cols matrix normalized with the given leading dimensions and offsets
/// (in elements) of input and output, whose surroundings must stay as they are and be unread.
template <class In, class Out>
std::vector<Out> normalized(OnHost& host, const std::vector<In>& dense, int64_t rows, int64_t cols,
                            float safety = 1.0f, int64_t pad = 0, int64_t offset = 0,
                            Findings* findings = nullptr) {
  const float inf = std::numeric_limits<float>::infinity();
  Findings own;
  const int64_t ld = cols + pad;
  std::vector<In> in(static_cast<size_t>(offset + rows * ld), from_f32<In>(inf));
  std::vector<Out> out(in.size(), from_f32<Out>(inf));
  for (int64_t r = 0; r < rows; ++r)
    std::copy_n(dense.begin() + r * cols, cols, in.begin() + offset + r * ld);
  const MatrixBatch from{in.data() + offset, dtype_of<In>(), rows, cols, ld, 1, 0};
  const MatrixBatch to{out.data() + offset, dtype_of<Out>(), rows, cols, ld, 1, 0};
  host.ops().normalize(*host.stream, from, to, Normalization{safety}, findings ? findings : &own);
  host.finish();
  std::vector<Out> result;
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = out.begin() + offset + r * ld;
    result.insert(result.end(), row, row + cols);
    REQUIRE(std::all_of(row + cols, row + ld, [](Out x) { return std::isinf(f32(x)); }));
  }
  return result;
}

/// The sum of a list, halved where the largest power of two below its length lies.
float pairwise(const std::vector<float>& x, size_t first, size_t count) {
  if (count == 0) return 0.0f;
  if (count == 1) return x[first];
  const size_t half = std::bit_ceil(count) / 2;
  return pairwise(x, first, half) + pairwise(x, first + half, count - half);
}

/// Adds the upper half of what is left to the lower, until one value is.
float halved(const float* x, int count) {
  std::vector<float> left(x, x + count);
  for (int half = count / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i)
      left[static_cast<size_t>(i)] += left[static_cast<size_t>(i + half)];
  return left[0];
}

/// Sum of the squares of a row: blocks of 2048 elements in 256 chains, which are halved eight by
/// eight.
float squares_of_row(const float* x, int64_t n) {
  std::vector<float> blocks;
  for (int64_t begin = 0; begin < n; begin += 2048) {
    float chain[256] = {};
    for (int64_t i = begin; i < std::min(n, begin + 2048); ++i) chain[i % 256] += x[i] * x[i];
    float eights[32];
    for (int i = 0; i < 32; ++i) eights[i] = halved(chain + 8 * i, 8);
    blocks.push_back(halved(eights, 32));
  }
  return pairwise(blocks, 0, blocks.size());
}

/// The norm of a matrix whose largest entry lies in [1, 2), in the tree that all backends share.
float norm_by_tree(const std::vector<float>& x, int64_t rows, int64_t cols) {
  const int64_t of_band = (rows + 127) / 128;
  std::vector<float> bands;
  for (int64_t first = 0; first < rows; first += of_band) {
    std::vector<float> sums;
    for (int64_t row = first; row < std::min(rows, first + of_band); ++row)
      sums.push_back(squares_of_row(x.data() + row * cols, cols));
    bands.push_back(pairwise(sums, 0, sums.size()));
  }
  return std::sqrt(pairwise(bands, 0, bands.size()));
}

double frobenius(const std::vector<float>& x) {
  double sum = 0.0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

}  // namespace

TEMPLATE_TEST_CASE("host normalize: divides by safety times the Frobenius norm, rounded once",
                   "[unit][host]", (std::pair<float, float>), (std::pair<float, bf16>),
                   (std::pair<bf16, float>), (std::pair<bf16, bf16>)) {
  using In = typename TestType::first_type;
  using Out = typename TestType::second_type;
  OnHost host;
  for (const auto& [rows, cols] : kShapes) {
    for (const float size : {1.0f, 1e-30f, 1e-40f, 1e30f, 1e-25f, 1e20f}) {
      for (const float safety : {1.0f, 1.02f}) {
        const auto in = values<In>(static_cast<uint64_t>(rows), rows * cols, size);
        std::vector<float> read;
        for (const In x : in) read.push_back(f32(x));
        const double divisor = static_cast<double>(safety) * frobenius(read);
        const auto out = normalized<In, Out>(host, in, rows, cols, safety);
        // The norm: half of what its sum of squares has (21 roundings deep at most), its
        // root, the product with safety, the division; then one rounding to Out.
        int64_t wrong = 0;
        for (size_t i = 0; i < in.size(); ++i) {
          const double expected = read[i] / divisor;
          const double bound = 14 * 0x1p-24 * std::abs(expected) + 0.5 * ulp<Out>(expected);
          wrong += !(std::abs(f32(out[i]) - expected) <= bound);
        }
        REQUIRE(wrong == 0);
      }
    }
  }
}

TEST_CASE("host normalize: the norm's bits are those of 256 chains in blocks of 2048 elements",
          "[unit][host]") {
  OnHost host;
  for (const int64_t cols : {1, 7, 8, 9, 255, 256, 257, 1023, 1024, 1025, 2047, 2048, 2049, 5000}) {
    for (const int64_t rows : {1, 2, 65, 200}) {
      INFO(rows << " x " << cols);
      auto in = values<float>(static_cast<uint64_t>(cols), rows * cols);
      in[static_cast<size_t>(rows * cols / 2)] = 1.5f;  // the largest, so that nothing is scaled
      const float divisor = 1.01f * norm_by_tree(in, rows, cols);
      std::vector<float> expected;
      for (const float x : in) expected.push_back(x / divisor);
      REQUIRE(same_bits(normalized<float, float>(host, in, rows, cols, 1.01f), expected));
    }
  }
}

TEST_CASE("host normalize: scaling the input by a power of two changes no bit of the output",
          "[unit][host]") {
  OnHost host;
  for (const auto& [rows, cols] : kShapes) {
    // Entries from 2^-23 to 1 in size: scaled by 2^-103 to 2^127 all stay normal.
    auto in = values<float>(7, rows * cols);
    for (float& x : in)
      if (x == 0.0f) x = 0.5f;
    const auto expected = normalized<float, float>(host, in, rows, cols, 1.01f);
    for (int k : {-103, -64, -3, -1, 1, 2, 30, 63, 64, 100, 126, 127}) {
      auto scaled = in;
      for (float& x : scaled) x = std::ldexp(x, k);
      REQUIRE(std::isfinite(*std::max_element(scaled.begin(), scaled.end())));
      REQUIRE(same_bits(normalized<float, float>(host, scaled, rows, cols, 1.01f), expected));
    }
  }
}

TEST_CASE("host normalize: bits follow from values and shape, not from ld, place or threads",
          "[unit][host][tsan]") {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>(300, 1031), {13, 64}, {1, 5000}}) {
    const auto in = values<bf16>(9, rows * cols);
    std::vector<float> expected;
    for (const int threads : {1, 2, 4}) {
      OnHost host(threads);
      if (threads == 1) expected = normalized<bf16, float>(host, in, rows, cols);
      for (const int64_t pad : {0, 1, 16, 61})
        for (const int64_t offset : {0, 1, 7})
          REQUIRE(same_bits(normalized<bf16, float>(host, in, rows, cols, 1.0f, pad, offset),
                            expected));
    }
  }
}

TEST_CASE("host normalize: a matrix in a batch has the bits it has alone", "[unit][host][tsan]") {
  const int64_t rows = 17, cols = 40, ld = 48, stride = 17 * 48 + 16, count = 11;
  std::vector<float> in = values<float>(4, stride * count), out(in.size());
  const MatrixBatch from{in.data(), DType::kF32, rows, cols, ld, count, stride};
  const MatrixBatch to{out.data(), DType::kF32, rows, cols, ld, count, stride};
  for (const int threads : {1, 3}) {
    OnHost host(threads);
    Findings findings;
    host.ops().normalize(*host.stream, from, to, Normalization{1.0f}, &findings);
    host.finish();
    for (int64_t i = 0; i < count; ++i) {
      std::vector<float> dense, batched;
      for (int64_t r = 0; r < rows; ++r) {
        const auto at = i * stride + r * ld;
        dense.insert(dense.end(), in.begin() + at, in.begin() + at + cols);
        batched.insert(batched.end(), out.begin() + at, out.begin() + at + cols);
      }
      REQUIRE(same_bits(batched, normalized<float, float>(host, dense, rows, cols)));
    }
  }
}

TEST_CASE("host normalize: the output may be the input", "[unit][host]") {
  OnHost host;
  auto x = values<float>(5, 31 * 65);
  const auto expected = normalized<float, float>(host, x, 31, 65);
  const MatrixBatch same{x.data(), DType::kF32, 31, 65, 65, 1, 0};
  Findings findings;
  host.ops().normalize(*host.stream, same, same, Normalization{1.0f}, &findings);
  host.finish();
  REQUIRE(same_bits(x, expected));
}

TEST_CASE("host normalize: denormal and extreme inputs come out with norm one", "[unit][host]") {
  OnHost host;
  const float least = std::numeric_limits<float>::denorm_min();
  const float most = std::numeric_limits<float>::max();
  for (const float x : {least, 3 * least, 0x1p-127f, 0x1p-126f, 1.0f, 0x1p127f, most}) {
    const std::vector<float> in = {x, -x, 0.0f, x};
    const auto out = normalized<float, float>(host, in, 2, 2);
    const double third = 1.0 / std::sqrt(3.0);
    for (size_t i = 0; i < 4; ++i)
      REQUIRE(std::abs(out[i] - (i == 2 ? 0.0 : i == 1 ? -third : third)) < 4e-7);
  }
  // The largest beside the smallest: exact zero is the right rounding of 2^-277.
  const auto out = normalized<float, float>(host, std::vector<float>{most, least}, 1, 2);
  REQUIRE(out[0] == 1.0f);
  REQUIRE(out[1] == 0.0f);
}

TEST_CASE("host normalize: the zero matrix gives zero and is counted", "[unit][host][tsan]") {
  OnHost host(2);
  Findings findings;
  for (const auto& [rows, cols] : kShapes) {
    const int64_t before = findings.zero_matrices;
    std::vector<float> in(static_cast<size_t>(rows * cols), 0.0f);
    in[0] = -0.0f;
    const auto out = normalized<float, bf16>(host, in, rows, cols, 1.0f, 3, 0, &findings);
    REQUIRE(std::all_of(out.begin(), out.end(), [](bf16 x) { return f32(x) == 0.0f; }));
    REQUIRE(findings.zero_matrices == before + 1);
    in.back() = 1e-45f;
    normalized<float, bf16>(host, in, rows, cols, 1.0f, 0, 0, &findings);
    REQUIRE(findings.zero_matrices == before + 1);
  }
  REQUIRE(findings.nonfinite == 0);
  // No elements: no matrix to count.
  const MatrixBatch empty{nullptr, DType::kF32, 0, 5, 5, 1, 0};
  host.ops().normalize(*host.stream, empty, empty, Normalization{1.0f}, &findings);
  host.finish();
  REQUIRE(findings.zero_matrices == std::ssize(kShapes));
}

TEST_CASE("host normalize: a value that is not finite reaches every piece of the output",
          "[unit][host]") {
  OnHost host;
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    for (size_t i = 0; i < 35; ++i) {
      auto in = values<float>(6, 35);
      in[i] = bad;
      for (const float x : normalized<float, float>(host, in, 5, 7))
        REQUIRE_FALSE(std::isfinite(x));
      for (const bf16 x : normalized<float, bf16>(host, in, 5, 7))
        REQUIRE_FALSE(std::isfinite(f32(x)));
    }
  }
}

TEST_CASE("host normalize: a safety that makes no sense is refused", "[unit][host]") {
  OnHost host;
  std::vector<float> x(4, 1.0f);
  const MatrixBatch m{x.data(), DType::kF32, 2, 2, 2, 1, 0};
  Findings findings;
  for (const float safety : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN()})
    REQUIRE_THROWS_AS(host.ops().normalize(*host.stream, m, m, Normalization{safety}, &findings),
                      Error);
}
