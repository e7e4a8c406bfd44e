#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "ops/normalize_cases.hpp"

// Tests `normalize` with values whose squares are scaled before they are added, and with values
// close to the bounds at which scaling starts.

using namespace muonrt;
using namespace ops_test;
using namespace normalize_cases;

namespace {

/// Returns the next value of a dtype towards zero.
float below(DType dtype, float x) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) - (dtype == DType::kF32 ? 1u : 0x10000u));
}

/// Fills `bytes` with magnitudes from `least` to `largest`, including these two, and some zeros.
/// The order of the values depends on the seed.
void fill(Bytes& bytes, DType dtype, int64_t first, int64_t n, float least, float largest) {
  int low = 0, high = 0;
  const float least_digits = std::frexp(least, &low), largest_digits = std::frexp(largest, &high);
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t bits = bits_at(static_cast<uint64_t>(n), i);
    const int exponent = low + static_cast<int>(bits % static_cast<uint64_t>(high - low + 1));
    const float digits = 0.5f + static_cast<float>(bits >> 56) * 0x1p-9f;
    float x = std::ldexp(exponent == low    ? std::max(digits, least_digits)
                         : exponent == high ? std::min(digits, largest_digits)
                                            : digits,
                         exponent);
    if (bits >> 40 & 1) x = -x;
    set_value(bytes, dtype, first + i, bits % 11 == 3 ? 0.0f : x);
  }
  set_value(bytes, dtype, first + n / 3, largest);
  set_value(bytes, dtype, first + n - 1, -least);
}

/// Returns ranges of magnitudes on both sides of each bound of sums_unscaled(). Some ranges are far
/// from the bound.
std::vector<std::pair<float, float>> ranges(DType dtype) {
  const auto under = [&](float x) { return below(dtype, x); };
  return {{0x1p-63f, 1.5f},           {under(0x1p-63f), 1.5f},
          {0x1p-63f, under(2.0f)},    {0x1p-63f, 2.0f},
          {0x1p-63f, 0x1p-60f},       {under(0x1p-63f), 0x1p-60f},
          {0x1p-64f, 0x1p-62f},       {0x1p-70f, 0x1p-66f},
          {0x1p-21f, under(0x1p43f)}, {under(0x1p-21f), under(0x1p43f)},
          {0x1p-20f, 0x1p43f},        {0x1p41f, under(0x1p43f)},
          {0x1p41f, 0x1p43f},         {0x1p62f, 0x1p65f},
          {0x1p-133f, 0x1p-128f},     {0x1p-133f, 0x1p127f}};
}

}  // namespace

TEST_CASE("normalize: sums of scaled and of unscaled squares have the same bits", "[ops]") {
  for (const Case& c : {Case{1, 2}, Case{9, 2051, 1, 3}, Case{300, 37}, Case{4, 64, 3}})
    for (size_t i = 0; i < ranges(DType::kF32).size(); ++i)
      check(c, [&](DType from) {
        const auto [least, largest] = ranges(from)[i];
        Bytes content(static_cast<size_t>(c.elements() * size_of(from)));
        fill(content, from, 0, std::ssize(content) / size_of(from) - c.pad, least, largest);
        return content;
      });
}

TEST_CASE("normalize: equal elements, and zeros with one element, of any size", "[ops]") {
  const Case c{5, 300, 1, 1};
  for (const float x : {1.0f, 3.0f, 0x1p-63f, 0x1.8p-64f, 0x1.fep42f, 0x1p43f, 0x1p64f, 0x1.1p-70f,
                        0x1p-126f, 0x1.8p-130f, 0x1p-132f, 0x1.fep127f}) {
    for (const bool alone : {false, true}) {
      for (const bool slightly_less : {false, true}) {
        check(c, [&](DType from) {
          const float value = slightly_less ? below(from, x) : x;
          Bytes content(static_cast<size_t>(c.rows * (c.cols + 1) * size_of(from)));
          for (int64_t i = 0; i < c.rows * (c.cols + 1); ++i)
            if (!alone || i == 700) set_value(content, from, i, value);
          return content;
        });
      }
    }
  }
}

TEST_CASE("normalize: one subnormal in a large matrix, wherever it is", "[ops]") {
  const Case c{129, 2100};
  for (const int64_t at : {int64_t{0}, int64_t{2047}, c.rows * c.cols / 2, c.rows * c.cols - 1})
    check(c, [&](DType from) {
      Bytes content = content_of(c, from);
      set_value(content, from, at, from == DType::kF32 ? 0x1p-149f : 0x1p-133f);
      return content;
    });
}

TEST_CASE("normalize: each matrix of a batch is scaled independently", "[ops]") {
  const Case c{130, 40, 18};
  check(c, [&](DType from) {
    const int64_t n = c.rows * c.cols;
    Bytes content(static_cast<size_t>(c.count * n * size_of(from)));
    for (int64_t i = 0; i < c.count; ++i) {
      const auto all = ranges(from);
      if (i == 7) continue;
      const auto [least, largest] = all[static_cast<size_t>(i) % all.size()];
      fill(content, from, i * n, n, least, largest);
    }
    set_value(content, from, 3 * n + 77, std::numeric_limits<float>::infinity());
    set_value(content, from, 11 * n - 1, std::nanf(""));
    return content;
  });
}

TEST_CASE("normalize: a thread block that sums scaled squares computes several bands of a batch",
          "[ops]") {
  const Case c{128, 5, 100};
  Bytes content = content_of(c, DType::kF32);
  for (int64_t i = 0; i < c.count; ++i)
    if (i % 3 != 0)
      fill(content, DType::kF32, i * 640, 640, 0x1p-72f, i % 3 == 1 ? 1.0f : 0x1p-66f);
  check(c, [&](DType from) { return from == DType::kF32 ? content : content_of(c, from); });
}

TEST_CASE("normalize: the roundings of subnormal scaled squares are kept", "[ops]") {
  // The sum is one chain of additions, smallest square first. Each square equals half a unit in the
  // last place of the next one, so every later rounding depends on the last digits of the first
  // square. Scaling would make the first square subnormal, and its last digits would be lost.
  float first = 0.0f, squared = 0.0f, next = 0.0f;
  for (uint32_t bits = 0x3f800000u; first == 0.0f; ++bits) {
    const float x = std::bit_cast<float>(bits);
    squared = x * x;
    next = std::nextafter(squared, 4.0f);
    const float one = x / (1.02f * std::sqrt(squared)), other = x / (1.02f * std::sqrt(next));
    if (std::bit_cast<uint32_t>(squared) % 2 == 0 && one != other) first = x;
  }
  const float lost = 0x1.01p-72f;
  REQUIRE(lost * lost == 0x1p-144f);
  const float scaled[] = {lost, 0x1p-60f, 0x1p-48f, 0x1p-36f, 0x1p-24f, 0x1p-12f, first};
  float sum = 0.0f, unscaled = 0.0f;
  for (const float x : scaled) {
    sum += x * x;
    unscaled += (x * 0x1p30f) * (x * 0x1p30f);
  }
  REQUIRE(sum == squared);
  REQUIRE(unscaled == next * 0x1p60f);
  const Case c{1, 2048};
  Bytes content(2048 * sizeof(float));
  for (int64_t i = 0; i < 7; ++i) set_value(content, DType::kF32, 256 * i, scaled[i] * 0x1p30f);
  const Run run = [&](Machine& machine) {
    return normalized(machine, c, DType::kF32, DType::kF32, content, {1.02f});
  };
  const Results expected = of_host(run);
  CHECK(value_in(expected[0], DType::kF32, 256 * 6) == first / (1.02f * std::sqrt(squared)));
  check_everywhere(expected, run);
}
