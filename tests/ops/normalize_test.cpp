#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "ops/normalize_cases.hpp"

using namespace muonrt;
using namespace ops_test;
using namespace normalize_cases;

namespace {

/// Returns the pairwise sum of a list. Splits the list at the largest power of two below its
/// length.
float pairwise(const std::vector<float>& x, size_t first, size_t count) {
  if (count == 0) return 0.0f;
  if (count == 1) return x[first];
  const size_t half = std::bit_ceil(count) / 2;
  return pairwise(x, first, half) + pairwise(x, first + half, count - half);
}

/// Adds the upper half to the lower half until one value is left, and returns this value.
float halved(const float* x, int count) {
  std::vector<float> left(x, x + count);
  for (int half = count / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i)
      left[static_cast<size_t>(i)] += left[static_cast<size_t>(i + half)];
  return left[0];
}

/// Returns the sum of the squares of a row. Each block of 2048 elements is summed in 256 chains,
/// which are then added in groups of eight.
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

/// Returns the norm of a matrix whose largest entry is in [1, 2). Adds the squares in the order
/// that all backends use.
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

}  // namespace

TEST_CASE("normalize: divides by the norm, rounded once, with the same bits on every backend",
          "[ops][tsan]") {
  // The cases have bands of one row and of many rows, and a batch. One round of the sum covers
  // several rows, one row, or part of a row. Some bands and rows need more than one round.
  for (const Case& c :
       {Case{1, 1}, Case{1, 37}, Case{7, 7, 3, 9}, Case{64, 1024}, Case{65, 1025}, Case{129, 33, 2},
        Case{200, 1031, 1, 5}, Case{300, 3000}, Case{700, 40}, Case{64, 64, 1, 0, 1e-40f},
        Case{64, 64, 1, 0, 1e-30f}, Case{31, 33, 1, 0, 1e-25f}, Case{65, 66, 1, 0, 1e20f},
        Case{64, 64, 1, 0, 1e30f}})
    check(c);
}

TEST_CASE("normalize: very many and very long rows have the same bits on every backend",
          "[ops][every][nosan]") {
  for (const Case& c : {Case{2, 270001}, Case{33000, 9}, Case{1, 2048 * 256},
                        Case{1, 2048 * 256 + 1}, Case{1, 1400001}})
    check(c);
}

TEST_CASE("normalize: the norm's bits are those of 256 chains in blocks of 2048, at any alignment",
          "[ops]") {
  for (const int64_t cols : {1, 7, 8, 9, 255, 256, 257, 1023, 1024, 1025, 2047, 2048, 2049, 5000}) {
    for (const Case& c :
         {Case{3, cols, 2}, Case{3, cols, 2, 1}, Case{3, cols, 2, 7}, Case{3, cols, 1, 0, 1, 1},
          Case{3, cols, 2, 1, 1, 1}, Case{3, cols, 2, 7, 1, 7}, Case{65, cols}, Case{200, cols}}) {
      Bytes content = content_of(c, DType::kF32);
      std::vector<float> expected;
      for (int64_t k = 0; k < c.count; ++k) {
        // The largest entry of the matrix is 1.5, so the matrix is not scaled.
        set_value(content, DType::kF32, k * c.rows * c.ld() + c.ld() * (c.rows / 2), 1.5f);
        std::vector<float> dense;
        for (int64_t i = 0; i < c.rows * c.cols; ++i)
          dense.push_back(
              value_in(content, DType::kF32, (k * c.rows + i / c.cols) * c.ld() + i % c.cols));
        const float divisor = 1.01f * norm_by_tree(dense, c.rows, c.cols);
        for (const float x : dense) expected.push_back(x / divisor);
      }
      const Run run = [&](Machine& machine) {
        const Bytes out = normalized(machine, c, DType::kF32, DType::kF32, content, {1.01f})[0];
        std::vector<float> dense;
        for (int64_t at = 0; at < c.elements(); ++at) {
          const float x = value_in(out, DType::kF32, at);
          if (at % c.ld() < c.cols)
            dense.push_back(x);
          else
            CHECK(std::bit_cast<uint32_t>(x) == 0x5a5a5a5au);
        }
        return Results{bytes_of(dense)};
      };
      CAPTURE(c.rows, cols, c.count, c.pad, c.offset);
      check_everywhere({bytes_of(expected)}, run);
    }
  }
}

TEST_CASE("normalize: scaling the input by a power of two changes no bit of the output", "[ops]") {
  const Case c{31, 333};
  // The magnitudes are between 2^-23 and 1, so they stay normal numbers when they are scaled by
  // 2^-103 to 2^127.
  const auto scaled = [&](int k) {
    Bytes content = content_of(c, DType::kF32);
    for (int64_t i = 0; i < c.elements(); ++i) {
      const float x = value_in(content, DType::kF32, i);
      set_value(content, DType::kF32, i, std::ldexp(x == 0.0f ? 0.5f : x, k));
    }
    return content;
  };
  const auto run_of = [&](int k) -> Run {
    return [&, k](Machine& machine) {
      return normalized(machine, c, DType::kF32, DType::kF32, scaled(k), {1.01f});
    };
  };
  const Results expected = of_host(run_of(0));
  for (const int k : {-103, -64, -3, -1, 1, 2, 30, 63, 64, 100, 126, 127})
    check_everywhere(expected, run_of(k));
}

TEST_CASE("normalize: zero matrices are zero afterwards and counted, also of a large batch",
          "[ops][tsan]") {
  // The batch has more matrices than one launch can process.
  const Case c{2, 3, 2500, 1};
  Bytes content = content_of(c, DType::kF32);
  for (const int64_t zero : {0, 1023, 1024, 2499})
    for (int64_t i = 0; i < 8; ++i) set_value(content, DType::kF32, zero * 8 + i, -0.0f);
  for (int64_t i = 0; i < 8; ++i) set_value(content, DType::kF32, 5 * 8 + i, i == 6 ? 1e-45f : 0);
  const Run run = [&](Machine& machine) {
    return normalized(machine, c, DType::kF32, DType::kBF16, content, {1.02f});
  };
  const Results expected = of_host(run);
  const auto found = value_of<Findings>(expected[1]);
  CHECK(found.zero_matrices == 4);
  CHECK(found.nonfinite == 0);
  CHECK(wrong_elements(c, DType::kF32, DType::kBF16, content, expected[0], {1.02f}) == 0);
  check_everywhere(expected, run);
  // A matrix without elements does not count as a zero matrix.
  check_everywhere({bytes_of(std::vector<Findings>(1))}, [](Machine& machine) {
    auto* findings = machine.put_one(Findings{});
    const MatrixBatch empty{nullptr, DType::kF32, 0, 5, 5, 1, 0};
    machine.ops().normalize(machine.on(), empty, empty, Normalization{1.0f}, findings);
    machine.finish();
    return Results{bytes_of(machine, findings)};
  });
}

TEST_CASE("normalize: a value that is not finite makes its whole matrix NaN", "[ops]") {
  const Case c{5, 7, 3};
  const float inf = std::numeric_limits<float>::infinity();
  for (int64_t at = 35; at < 70; ++at) {
    for (const DType to : {DType::kF32, DType::kBF16}) {
      Bytes content = content_of(c, DType::kBF16);
      set_value(content, DType::kBF16, at, at % 3 == 0 ? inf : at % 3 == 1 ? -inf : std::nanf(""));
      const Run run = [&](Machine& machine) {
        return normalized(machine, c, DType::kBF16, to, content, {1.02f});
      };
      const Results expected = of_host(run);
      for (int64_t i = 0; i < c.elements(); ++i)
        CHECK(std::isnan(value_in(expected[0], to, i)) == (i >= 35 && i < 70));
      check_everywhere(expected, run);
    }
  }
}

// tests/cuda/traffic runs this case to count the bytes that the normalization's kernels read.
TEST_CASE("normalize: a matrix whose squares are summed scaled", "[.traffic]") {
  const Case c{128, 2048};
  Bytes content = content_of(c, DType::kBF16);
  set_value(content, DType::kBF16, 12345, 0x1p-133f);
  const Run run = [&](Machine& machine) {
    return normalized(machine, c, DType::kBF16, DType::kBF16, content, {1.02f});
  };
  check_everywhere(of_host(run), run);
}

TEST_CASE("normalize: the output may be the input", "[ops]") {
  const Case c{31, 65};
  const Bytes content = content_of(c, DType::kF32);
  const Run apart = [&](Machine& machine) {
    return Results{normalized(machine, c, DType::kF32, DType::kF32, content, {1.02f})[0]};
  };
  check_everywhere(of_host(apart), [&](Machine& machine) {
    auto* data = machine.put(content);
    const MatrixBatch m{data, DType::kF32, c.rows, c.cols, c.cols, 1, 0};
    machine.ops().normalize(machine.on(), m, m, Normalization{1.02f}, machine.put_one(Findings{}));
    machine.finish();
    return Results{machine.get(data, std::ssize(content))};
  });
}

TEST_CASE("normalize: a safety that is not positive and finite is rejected", "[ops]") {
  for (const Subject& subject : subjects()) {
    INFO(subject.name);
    Machine machine(subject.make());
    const MatrixBatch m{machine.put(std::vector<float>(4, 1.0f)), DType::kF32, 2, 2, 2, 1, 0};
    auto* findings = machine.put_one(Findings{});
    for (const float safety : {0.0f, -1.0f, HUGE_VALF, std::nanf("")})
      CHECK_THROWS_AS(machine.ops().normalize(machine.on(), m, m, Normalization{safety}, findings),
                      Error);
  }
}
