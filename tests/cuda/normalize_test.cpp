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
                         const Bytes& content, float safety = 1.02f) {
  Machine machine(std::move(device));
  const int64_t ld = c.cols + c.pad, stride = c.rows * ld;
  auto* in = machine.put(content, c.offset * size_of(from));
  auto* out = machine.put(Bytes(static_cast<size_t>(c.count * stride * size_of(to)), 0x5a));
  auto* findings = machine.put_one(Findings{});
  machine.ops().normalize(machine.on(), {in, from, c.rows, c.cols, ld, c.count, stride},
                          {out, to, c.rows, c.cols, ld, c.count, stride}, Normalization{safety},
                          findings);
  machine.finish();
  return {machine.get(out, c.count * stride * size_of(to)), machine.get_one(findings)};
}

Bytes content_of(const Case& c, DType dtype) {
  return values(static_cast<uint64_t>(c.rows * 1000 + c.cols), dtype,
                c.count * c.rows * (c.cols + c.pad), c.size);
}

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};
constexpr DType kIterates[] = {DType::kF32, DType::kBF16, DType::kF16};

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

}  // namespace

TEST_CASE("cuda normalize: the norm's tree is the host's, so all bits are", "[cuda]") {
  // Bands of one row and of many, a batch; rounds of the sum of several rows, of one, of a part of
  // a row; bands and rows longer than a round.
  for (const Case& c :
       {Case{1, 1}, Case{1, 37}, Case{7, 7, 3, 9}, Case{64, 1024}, Case{65, 1025}, Case{129, 33, 2},
        Case{200, 1031, 1, 5}, Case{300, 3000}, Case{700, 40}, Case{33000, 9}, Case{2, 270001},
        Case{1, 2048 * 256}, Case{1, 2048 * 256 + 1}, Case{1, 1400001}, Case{64, 64, 1, 0, 1e-40f},
        Case{64, 64, 1, 0, 1e30f}})
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
