#include <array>
#include <catch2/catch.hpp>

#include "host/norm_passes.hpp"
#include "host/row_passes.hpp"
#include "host_fixture.hpp"

using namespace muonrt;
using namespace muonrt::host;
using host_test::f32;
using host_test::same_bits;
using host_test::values;

namespace {

constexpr int64_t kN = 131;  // not a multiple of any vector length

/// Requires that body(isa, cut) returns the same bits for every instruction set of this machine and
/// for every division of n elements into two parts. The tests in tests/ops check the values.
template <class Body>
void same_for_every_isa_and_cut(const Body& body) {
  const auto expected = body(Isa::kBaseline, 0);
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best_isa()) continue;
    for (int64_t cut = 0; cut <= kN; ++cut) {
      const auto got = body(isa, cut);
      for (size_t i = 0; i < got.size(); ++i) REQUIRE(same_bits(got[i], expected[i]));
    }
  }
}

/// Returns the start and the length of both parts.
std::array<std::pair<int64_t, int64_t>, 2> parts(int64_t cut) {
  return {{{0, cut}, {cut, kN - cut}}};
}

MuonScalars some_scalars(bool heavy_ball, bool nesterov) {
  MuonScalars s;
  s.momentum = 0.93f;
  s.heavy_ball = heavy_ball;
  s.nesterov = nesterov;
  s.rate = 0.021f;
  s.decay = 0.0017f;
  s.grad_scale = 0.37f;
  return s;
}

}  // namespace

TEMPLATE_TEST_CASE("host passes: the direction's bits do not depend on cuts or instruction sets",
                   "[unit][host]", float, bf16) {
  using Grad = TestType;
  const auto grad = values<Grad>(1, kN);
  const auto momentum = values<float>(2, kN);
  for (const bool heavy : {false, true}) {
    for (const bool nesterov : {false, true}) {
      const MuonScalars s = some_scalars(heavy, nesterov);
      same_for_every_isa_and_cut([&](Isa isa, int64_t cut) {
        std::array<std::vector<bf16>, 1> out = {std::vector<bf16>(kN)};
        for (const auto& [at, n] : parts(cut))
          run_pass<DirectionPass<Grad, float, bf16>>(isa, grad.data() + at, momentum.data() + at,
                                                     out[0].data() + at, n, &s);
        return out;
      });
    }
  }
}

TEST_CASE("host passes: a commit's bits do not depend on cuts or instruction sets",
          "[unit][host]") {
  const auto grad = values<float>(7, kN), update = values<float>(4, kN);
  MuonScalars s = some_scalars(false, true);
  for (const bool cautious : {false, true}) {
    s.cautious = cautious;
    same_for_every_isa_and_cut([&](Isa isa, int64_t cut) {
      std::array out = {values<float>(5, kN), values<float>(6, kN)};
      for (const auto& [at, n] : parts(cut))
        run_pass<MuonPass>(isa, out[0].data() + at, out[1].data() + at, grad.data() + at,
                           update.data() + at, n, 0.29f, 0.7f, 0.875f, &s);
      return out;
    });
  }
}

TEST_CASE("host passes: split and random weights do not depend on cuts or instruction sets",
          "[unit][host]") {
  const auto weight = values<float>(13, kN);
  const int64_t first = (int64_t{1} << 33) + 5;
  same_for_every_isa_and_cut([&](Isa isa, int64_t cut) {
    std::vector<bf16> high(kN), random(kN);
    std::vector<uint16_t> low(kN);
    std::vector<float> back(kN);
    for (const auto& [at, n] : parts(cut)) {
      run_pass<SplitPass>(isa, weight.data() + at, high.data() + at, low.data() + at, n);
      run_pass<JoinPass>(isa, high.data() + at, low.data() + at, back.data() + at, n);
      run_pass<StochasticPass>(isa, weight.data() + at, random.data() + at, n, uint64_t{7},
                               uint64_t{11}, 3u, first + at);
    }
    REQUIRE(same_bits(back, weight));
    std::array out = {std::vector<uint16_t>(kN), low, std::vector<uint16_t>(kN)};
    for (size_t i = 0; i < kN; ++i) out[0][i] = high[i].bits, out[2][i] = random[i].bits;
    return out;
  });
}

TEST_CASE("host passes: each element is rounded with the random bits of its index",
          "[unit][host]") {
  const auto in = values<float>(22, 1300);
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best_isa()) continue;
    // The blocks of the last case cross the limit of 32 bits.
    for (const int64_t first : {int64_t{0}, int64_t{5}, (int64_t{8} << 32) - 640}) {
      std::vector<bf16> out(in.size());
      run_pass<StochasticPass>(isa, in.data(), out.data(), std::ssize(in), uint64_t{7} << 40,
                               uint64_t{11} << 33 | 5, 3u, first);
      for (size_t i = 0; i < in.size(); ++i) {
        const uint64_t element = static_cast<uint64_t>(first) + i;
        const uint32_t random = random_bits(uint64_t{7} << 40, uint64_t{11} << 33 | 5, 3, element);
        REQUIRE(out[i].bits == round_stochastic(in[i], random));
      }
    }
  }
}

TEST_CASE("host passes: AdamW's bits do not depend on cuts or instruction sets", "[unit][host]") {
  const auto grad = values<float>(9, kN);
  AdamScalars s;
  s.rate = 0.003f;
  s.decay = 0.0003f;
  s.correction1 = 2.5f;
  s.correction2 = 7.25f;
  s.grad_scale = 0.61f;
  same_for_every_isa_and_cut([&](Isa isa, int64_t cut) {
    std::array out = {values<float>(8, kN), values<float>(10, kN), values<float>(11, kN)};
    for (float& v : out[2]) v = std::abs(v);
    for (const auto& [at, n] : parts(cut))
      run_pass<AdamPass>(isa, out[0].data() + at, out[1].data() + at, out[2].data() + at,
                         grad.data() + at, n, &s);
    return out;
  });
}

TEST_CASE("host passes: a value that is not finite is detected at every index", "[unit][host]") {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float largest = std::numeric_limits<float>::max();
  const float largest_bf16 = 0x1.fep127f;
  std::vector<float> x(kN, largest_bf16);
  std::vector<bf16> y(kN);
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best_isa()) continue;
    const auto cast = [&] { return run_pass<CastPass<float, bf16>>(isa, x.data(), y.data(), kN); };
    const auto scan = [&] { return run_pass<ScanPass<float, false>>(isa, x.data(), 1.0f, kN); };
    REQUIRE(cast() == 0);
    REQUIRE(scan() == 0);
    for (size_t i = 0; i < kN; ++i) {
      for (const float bad : {inf, -inf, nan}) {
        x[i] = bad;
        REQUIRE(cast() != 0);
        REQUIRE(scan() != 0);
        REQUIRE_FALSE(std::isfinite(f32(y[i])));
      }
      // Both values are finite in f32. In bf16 the first value rounds to infinity, and the second
      // value rounds to the largest bf16 value.
      x[i] = largest;
      REQUIRE(cast() != 0);
      REQUIRE(scan() == 0);
      REQUIRE(std::isinf(f32(y[i])));
      x[i] = std::nextafter(0x1.ffp127f, 0.0f);
      REQUIRE(cast() == 0);
      REQUIRE(f32(y[i]) == largest_bf16);
      x[i] = largest_bf16;
    }
  }
}

// From 8 MiB on, and if its rows are aligned, `out` is written with non-temporal stores.
TEMPLATE_TEST_CASE("host passes: matrices of all sizes are transposed exactly", "[unit][host]",
                   float, bf16) {
  using Element = TestType;
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{2080, 2072}, {2081, 2079}, {70, 33}}) {
    for (const int64_t shift : {0, 3}) {
      const int64_t in_ld = cols + shift, out_ld = round_up(rows, 16) + shift;
      auto in = values<Element>(21, rows * in_ld);
      const std::vector<Element> before(static_cast<size_t>(cols * out_ld), Element{});
      std::vector<Element> expected = before;
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j)
          expected[static_cast<size_t>(j * out_ld + i)] = in[static_cast<size_t>(i * in_ld + j)];
      for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
        if (isa > best_isa()) continue;
        std::vector<Element> out = before;
        REQUIRE(run_pass<TransposePass<Element, Element>>(isa, in.data(), in_ld, out.data(), out_ld,
                                                          rows, cols) == 0);
        REQUIRE(same_bits(out, expected));
      }
      for (const int64_t at : {rows / 2 * in_ld + cols / 2, int64_t{0}}) {
        auto bad = in;
        bad[static_cast<size_t>(at)] = from_f32<Element>(-INFINITY);
        std::vector<Element> out = before;
        REQUIRE(run_pass<TransposePass<Element, Element>>(best_isa(), bad.data(), in_ld, out.data(),
                                                          out_ld, rows, cols) == 1);
      }
    }
  }
}

TEST_CASE("host passes: a norm's bits do not depend on instruction sets or alignment",
          "[unit][host]") {
  for (const int64_t n : {1, 31, 32, 33, 255, 256, 257, 2047, 2048, 2049, 5000}) {
    const auto wide = values<float>(12, n + 16);
    const std::vector<float> row(wide.begin(), wide.begin() + n);
    double exact = 0.0, largest = 0.0;
    for (const float x : row) {
      exact += static_cast<double>(x) * x;
      largest = std::max(largest, std::abs(static_cast<double>(x)));
    }
    const float expected = run_pass<SquaresPass<float>>(Isa::kBaseline, row.data(), n, 1.0f, 1.0f);
    // The bound counts one rounding for each of the 8 terms in a chain, the 8 halvings, at most 2
    // levels of blocks, and the square itself.
    REQUIRE(std::abs(expected - exact) <= 19 * 0x1p-24 * exact);
    for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
      if (isa > best_isa()) continue;
      for (int64_t shift = 0; shift < 16; ++shift) {
        std::vector<float> moved(static_cast<size_t>(n + 16), NAN);
        std::copy(row.begin(), row.end(), moved.begin() + shift);
        const float* at = moved.data() + shift;
        REQUIRE(run_pass<SquaresPass<float>>(isa, at, n, 1.0f, 1.0f) == expected);
        REQUIRE(run_pass<SquaresPass<float>>(isa, at, n, 0x1p20f, 0x1p10f) == expected * 0x1p60f);
        const int32_t bits = run_pass<LargestPass<float>>(isa, at, n);
        REQUIRE(std::bit_cast<float>(bits) == static_cast<float>(largest));
      }
    }
  }
}

TEST_CASE("host passes: the pairwise sum adds every value once", "[unit][host]") {
  for (int64_t n = 0; n < 200; ++n) {
    PairwiseSum sum;
    for (int64_t i = 0; i < n; ++i) sum.add(static_cast<float>(i * i));
    REQUIRE(sum.total() == static_cast<float>((n - 1) * n * (2 * n - 1) / 6));
  }
  // A sequential sum would stop growing near 2^24, because later terms would be rounded away.
  PairwiseSum ones;
  for (int64_t i = 0; i < (1 << 25); ++i) ones.add(1.0f);
  REQUIRE(ones.total() == 0x1p25f);
}
