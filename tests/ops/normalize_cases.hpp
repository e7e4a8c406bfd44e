#pragma once

#include <catch2/catch.hpp>
#include <cmath>

#include "ops/subjects.hpp"
#include "support/tolerances.hpp"

// Functions that the tests of `normalize` share.
namespace normalize_cases {

using namespace muonrt;
using namespace ops_test;

inline constexpr DType kInputs[] = {DType::kF32, DType::kBF16};
inline constexpr DType kIterates[] = {DType::kF32, DType::kBF16, DType::kF16};

struct Case {
  int64_t rows, cols, count = 1, pad = 0;
  float size = 1.0f;
  int64_t offset = 0;  // offset of the input, in elements

  int64_t ld() const { return cols + pad; }
  int64_t elements() const { return count * rows * ld(); }
};

inline Bytes content_of(const Case& c, DType dtype) {
  return values(static_cast<uint64_t>(c.rows * 1000 + c.cols), dtype, c.elements(), c.size);
}

/// Returns the output with its padding, and the Findings.
inline Results normalized(Machine& machine, const Case& c, DType from, DType to,
                          const Bytes& content, const Normalization& how) {
  auto* in = machine.put(content, c.offset * size_of(from));
  auto* out = machine.put(Bytes(static_cast<size_t>(c.elements() * size_of(to)), 0x5a));
  auto* findings = machine.put_one(Findings{});
  const int64_t stride = c.rows * c.ld();
  machine.ops().normalize(machine.on(), {in, from, c.rows, c.cols, c.ld(), c.count, stride},
                          {out, to, c.rows, c.cols, c.ld(), c.count, stride}, how, findings);
  machine.finish();
  return {machine.get(out, c.elements() * size_of(to)), bytes_of(machine, findings)};
}

/// Returns half the smallest positive value of a dtype.
inline double smallest_half(DType dtype) {
  return dtype == DType::kF32 ? 0x1p-150 : dtype == DType::kBF16 ? 0x1p-134 : 0x1p-25;
}

/// Returns the number of elements that differ too much from the float64 result. The allowed
/// difference is half the rounding error of the sum of squares (at most 21 roundings), plus one
/// rounding each for the root, the multiplication by the safety factor, the division, and the
/// conversion to `to`.
inline int64_t wrong_elements(const Case& c, DType from, DType to, const Bytes& in,
                              const Bytes& out, const Normalization& how) {
  int64_t wrong = 0;
  for (int64_t k = 0; k < c.count; ++k) {
    const auto each = [&](const auto& body) {
      for (int64_t i = 0; i < c.rows; ++i)
        for (int64_t j = 0; j < c.cols; ++j) body((k * c.rows + i) * c.ld() + j);
    };
    double sum = 0;
    each([&](int64_t at) {
      const double x = value_in(in, from, at);
      sum += x * x;
    });
    const double divisor =
        std::fmax(static_cast<double>(how.safety) * std::sqrt(sum) + static_cast<double>(how.added),
                  static_cast<double>(how.least));
    each([&](int64_t at) {
      const double got = value_in(out, to, at);
      const double expected = sum == 0 ? 0 : value_in(in, from, at) / divisor;
      const double bound = (14 * 0x1p-24 + 1.001 * tolerance::roundoff(to)) * std::fabs(expected) +
                           1.001 * (smallest_half(to) + smallest_half(DType::kF32));
      wrong += std::isfinite(sum) ? !(std::fabs(got - expected) <= bound) : !std::isnan(got);
    });
  }
  return wrong;
}

/// Normalizes `make(dtype)` for every pair of dtypes. Checks that the results of the host are
/// correct, and that the results of all backends are bitwise identical to them.
template <class Make>
void check(const Case& c, const Make& make) {
  const Normalization ways[] = {{1.02f}, {1.0f, 1e-7f}, {1.0f, 0.0f, 1e-7f}};
  for (const DType from : kInputs) {
    const Bytes content = make(from);
    for (const DType to : kIterates) {
      const Normalization& how = ways[(static_cast<size_t>(to) + static_cast<size_t>(from)) % 3];
      CAPTURE(c.rows, c.cols, c.count, c.pad, c.offset, name_of(from), name_of(to), how.added);
      const Run run = [&](Machine& machine) {
        return normalized(machine, c, from, to, content, how);
      };
      const Results expected = of_host(run);
      CHECK(wrong_elements(c, from, to, content, expected[0], how) == 0);
      check_everywhere(expected, run);
    }
  }
}

inline void check(const Case& c) {
  check(c, [&](DType from) { return content_of(c, from); });
}

}  // namespace normalize_cases
