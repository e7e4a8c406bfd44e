#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "cuda/machine.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

struct Case {
  int64_t rows, cols, count = 1, pad = 0;
  float size = 1.0f;
  int64_t offset = 0;  // of the input, in elements
};

struct Normalized {
  Bytes out;
  Findings findings;
};

Normalized normalized_by(std::unique_ptr<Device> device, const Case& c, DType from, DType to,
                         const Bytes& content, const Normalization& how = {1.02f}) {
  Machine machine(std::move(device));
  const int64_t ld = c.cols + c.pad, stride = c.rows * ld;
  auto* in = machine.put(content, c.offset * size_of(from));
  auto* out = machine.put(Bytes(static_cast<size_t>(c.count * stride * size_of(to)), 0x5a));
  auto* findings = machine.put_one(Findings{});
  machine.ops().normalize(machine.on(), {in, from, c.rows, c.cols, ld, c.count, stride},
                          {out, to, c.rows, c.cols, ld, c.count, stride}, how, findings);
  machine.finish();
  return {machine.get(out, c.count * stride * size_of(to)), machine.get_one(findings)};
}

Bytes content_of(const Case& c, DType dtype) {
  return values(static_cast<uint64_t>(c.rows * 1000 + c.cols), dtype,
                c.count * c.rows * (c.cols + c.pad), c.size);
}

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};
constexpr DType kIterates[] = {DType::kF32, DType::kBF16, DType::kF16};

/// The bytes of device and host, for content made by `content(dtype)` and every pair of dtypes.
template <class Content>
void compare_with_host(const Case& c, const Content& content_of_dtype) {
  const Normalization ways[] = {{1.02f}, {1.0f, 1e-7f}, {1.0f, 0.0f, 1e-7f}};
  for (const DType from : kDTypes) {
    const Bytes content = content_of_dtype(from);
    for (const DType to : kIterates) {
      const Normalization& how = ways[static_cast<size_t>(to) % 3];
      INFO(c.rows << " x " << c.cols << " + " << c.pad << ", " << name_of(from) << " to "
                  << name_of(to));
      const auto expected = normalized_by(make_host(), c, from, to, content, how);
      const auto got = normalized_by(make_device(true), c, from, to, content, how);
      CHECK(difference(got.out, expected.out) == -1);
      CHECK(got.findings.zero_matrices == expected.findings.zero_matrices);
    }
  }
}

/// The bytes of device and host, for every pair of dtypes.
void compare_with_host(const Case& c) {
  for (const DType from : kDTypes) {
    for (const DType to : kIterates) {
      INFO(c.rows << " x " << c.cols << " + " << c.pad << ", " << name_of(from) << " to "
                  << name_of(to));
      const Bytes content = content_of(c, from);
      const auto expected = normalized_by(make_host(), c, from, to, content);
      const auto got = normalized_by(make_device(true), c, from, to, content);
      CHECK(difference(got.out, expected.out) == -1);
      CHECK(got.findings.zero_matrices == 0);
    }
  }
}

/// The next number of a dtype towards zero.
float below(DType dtype, float x) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) - (dtype == DType::kF32 ? 1u : 0x10000u));
}

/// Magnitudes whose exponents go from one's to the other's, both of which are there, in an order
/// that follows from the seed; now and then a zero.
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

/// Ranges on both sides of each bound of sums_unscaled, some far beyond.
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

TEST_CASE("cuda normalize: the norm's tree is the host's, so all bits are", "[cuda]") {
  // Bands of one row and of many, a batch; rounds of the sum of several rows, of one, of a part of
  // a row; bands and rows longer than a round.
  for (const Case& c : {Case{1, 1}, Case{1, 37}, Case{7, 7, 3, 9}, Case{64, 1024}, Case{65, 1025},
                        Case{129, 33, 2}, Case{200, 1031, 1, 5}, Case{300, 3000}, Case{700, 40},
                        Case{2, 270001}, Case{64, 64, 1, 0, 1e-40f}, Case{64, 64, 1, 0, 1e30f}})
    compare_with_host(c);
}

TEST_CASE("cuda normalize: the same for very many and for very long rows", "[cuda][every]") {
  for (const Case& c :
       {Case{33000, 9}, Case{1, 2048 * 256}, Case{1, 2048 * 256 + 1}, Case{1, 1400001}})
    compare_with_host(c);
}

TEST_CASE("cuda normalize: alignment and the ends of chains and blocks change no bit", "[cuda]") {
  for (const int64_t cols : {1, 7, 8, 9, 255, 256, 257, 1023, 1024, 1025, 2047, 2048, 2049, 5000})
    for (const int64_t pad : {0, 1, 7})
      for (const int64_t offset : {0, 1}) compare_with_host({3, cols, 2, pad, 1.0f, offset});
}

TEST_CASE("cuda normalize: a batch larger than a launch takes is normalized whole", "[cuda]") {
  const Case c{2, 3, 2500, 1};
  Bytes content = content_of(c, DType::kF32);
  for (const int64_t zero : {0, 1023, 1024, 2499})
    for (int64_t i = 0; i < 8; ++i) set_value(content, DType::kF32, zero * 8 + i, 0.0f);
  const auto expected = normalized_by(make_host(), c, DType::kF32, DType::kBF16, content);
  const auto got = normalized_by(make_device(true), c, DType::kF32, DType::kBF16, content);
  CHECK(difference(got.out, expected.out) == -1);
  CHECK(got.findings.zero_matrices == 4);
}

TEST_CASE("cuda normalize: a value that is not finite makes its whole matrix NaN", "[cuda]") {
  const Case c{5, 11, 3};
  for (const float bad : {std::nanf(""), -std::numeric_limits<float>::infinity()}) {
    Bytes content = content_of(c, DType::kBF16);
    set_value(content, DType::kBF16, 55 + 13, bad);
    const auto got = normalized_by(make_device(true), c, DType::kBF16, DType::kF32, content);
    for (int64_t i = 0; i < 165; ++i)
      CHECK(std::isnan(value_in(got.out, DType::kF32, i)) == (i >= 55 && i < 110));
    CHECK(difference(got.out,
                     normalized_by(make_host(), c, DType::kBF16, DType::kF32, content).out) == -1);
  }
}

TEST_CASE("cuda normalize: sums of scaled and of unscaled squares have the same bits", "[cuda]") {
  for (const Case& c : {Case{1, 2}, Case{9, 2051, 1, 3}, Case{300, 37}, Case{4, 64, 3}})
    for (size_t i = 0; i < ranges(DType::kF32).size(); ++i)
      compare_with_host(c, [&](DType from) {
        const auto [least, largest] = ranges(from)[i];
        Bytes content(static_cast<size_t>(c.count * c.rows * (c.cols + c.pad) * size_of(from)));
        fill(content, from, 0, std::ssize(content) / size_of(from) - c.pad, least, largest);
        return content;
      });
}

TEST_CASE("cuda normalize: equal elements, and zeros beside one element, of any size", "[cuda]") {
  const Case c{5, 300, 1, 1};
  for (const float x : {1.0f, 3.0f, 0x1p-63f, 0x1.8p-64f, 0x1.fep42f, 0x1p43f, 0x1p64f, 0x1.1p-70f,
                        0x1p-126f, 0x1.8p-130f, 0x1p-133f}) {
    for (const bool alone : {false, true}) {
      for (const bool slightly_less : {false, true}) {
        compare_with_host(c, [&](DType from) {
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

TEST_CASE("cuda normalize: one subnormal in a large matrix, wherever it lies", "[cuda]") {
  const Case c{129, 2100};
  for (const int64_t at : {int64_t{0}, int64_t{2047}, c.rows * c.cols / 2, c.rows * c.cols - 1})
    compare_with_host(c, [&](DType from) {
      Bytes content = content_of(c, from);
      set_value(content, from, at, from == DType::kF32 ? 0x1p-149f : 0x1p-133f);
      return content;
    });
}

TEST_CASE("cuda normalize: matrices of a batch go each their own way", "[cuda]") {
  const Case c{130, 40, 18};
  compare_with_host(c, [&](DType from) {
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

TEST_CASE("cuda normalize: a block that sums scaled squares takes several bands of a large batch",
          "[cuda]") {
  const Case c{128, 5, 100};
  Bytes content = content_of(c, DType::kF32);
  for (int64_t i = 0; i < c.count; ++i)
    if (i % 3 != 0)
      fill(content, DType::kF32, i * 640, 640, 0x1p-72f, i % 3 == 1 ? 1.0f : 0x1p-66f);
  CHECK(difference(normalized_by(make_device(true), c, DType::kF32, DType::kF32, content).out,
                   normalized_by(make_host(), c, DType::kF32, DType::kF32, content).out) == -1);
}

TEST_CASE("cuda normalize: of scaled squares that are subnormal the roundings are the host's",
          "[cuda]") {
  // One chain, smallest first. Each square is half of the last digit of the next one, and only the
  // last digits of the first, which it loses when scaled, would decide all that follows.
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
  const auto expected = normalized_by(make_host(), c, DType::kF32, DType::kF32, content);
  const auto got = normalized_by(make_device(true), c, DType::kF32, DType::kF32, content);
  CHECK(value_in(expected.out, DType::kF32, 256 * 6) == first / (1.02f * std::sqrt(squared)));
  CHECK(difference(got.out, expected.out) == -1);
}

// For tests/cuda/traffic, which counts what the passes read.
TEST_CASE("cuda normalize: a matrix whose squares are summed scaled", "[.traffic]") {
  const Case c{128, 2048};
  Bytes content = content_of(c, DType::kBF16);
  set_value(content, DType::kBF16, 12345, 0x1p-133f);
  CHECK(difference(normalized_by(make_device(true), c, DType::kBF16, DType::kBF16, content).out,
                   normalized_by(make_host(), c, DType::kBF16, DType::kBF16, content).out) == -1);
}

TEST_CASE("cuda normalize: the output may be the input", "[cuda]") {
  const Case c{31, 65};
  const Bytes content = content_of(c, DType::kF32);
  Machine machine(make_device(true));
  auto* data = machine.put(content);
  auto* findings = machine.put_one(Findings{});
  const MatrixBatch m{data, DType::kF32, c.rows, c.cols, c.cols, 1, 0};
  machine.ops().normalize(machine.on(), m, m, Normalization{1.02f}, findings);
  machine.finish();
  CHECK(difference(machine.get(data, std::ssize(content)),
                   normalized_by(make_host(), c, DType::kF32, DType::kF32, content).out) == -1);
}
