#include "algo/newton_schulz.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "newton_schulz_cases.hpp"
#include "support/catalogue.hpp"
#include "support/numerics/reference_ops.hpp"

using namespace muonrt;
using namespace newton_schulz_cases;
namespace lists = reference::lists;

namespace {

/// Returns a matrix with entries +-1 and orthogonal rows; n is a power of two.
Matrix hadamard(int64_t n) {
  Matrix h(n, n);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j)
      h(i, j) = __builtin_popcountll(static_cast<uint64_t>(i & j)) % 2 ? -1 : 1;
  return h;
}

}  // namespace

TEST_CASE("newton-schulz: equals the reference over the catalogue of shapes",
          "[unit][newton-schulz]") {
  auto backends = backends::all();
  for (const auto& shape : catalogue::kShapes) {
    const Matrix x = upright(reference::gaussian(shape.rows, shape.cols, 31));
    for (const Named& l : five_step_lists()) {
      for (const DType transport : {DType::kF32, DType::kBF16}) {
        const Matrix in = reference::rounded(x, transport);
        const Matrix expected = reference::newton_schulz(l.list, l.safety, in);
        for (auto& backend : backends) {
          if (backend.slow && x.rows > 32) continue;
          INFO(backend.name << ", " << l.name << ", " << shape.rows << " x " << shape.cols);
          const Matrix f32 = standard(backend, l, DType::kF32, transport, in);
          CHECK(reference::max_difference(f32, expected) <= near(l));
          if (!bf16_stands(l)) continue;
          const Matrix bf16 = standard(backend, l, DType::kBF16, transport, in);
          CHECK(reference::max_difference(bf16, expected) <= tolerance::newton_schulz_bf16(x.rows));
        }
      }
    }
  }
}

TEST_CASE("newton-schulz: the Gram form equals its reference on every backend, with any restarts",
          "[unit][newton-schulz]") {
  for (auto& backend : backends::all()) {
    for (const Named& l : five_step_lists()) {
      for (const std::vector<int>& restarts :
           {std::vector<int>{}, {1}, {2}, {4}, {1, 3}, {2, 3}, {1, 2, 3, 4}}) {
        for (const auto& [m, n] : {std::pair<int64_t, int64_t>{1, 5}, {9, 9}, {13, 40}}) {
          INFO(backend.name << ", " << l.name << ", " << m << " x " << n << ", " << restarts.size()
                            << " restarts");
          const Matrix x = reference::rounded(reference::gaussian(m, n, 41), DType::kBF16);
          const Matrix o =
              runner::orthogonalize(backend, runner::settings_of(l.list, l.safety, DType::kF32),
                                    runner::gram(l.list, restarts), DType::kBF16, x);
          const Matrix expected = reference::newton_schulz_gram(l.list, restarts, l.safety, x);
          CHECK(reference::max_difference(o, expected) <=
                tolerance::gram_f32(reference::gain(l.list, l.safety)));
          CHECK(reference::max_difference(expected,
                                          reference::newton_schulz(l.list, l.safety, x)) <= 1e-9);
        }
      }
    }
  }
}

TEST_CASE("newton-schulz: with a restart before every step the Gram form is the standard form",
          "[unit][newton-schulz]") {
  const Matrix x = reference::rounded(reference::gaussian(19, 45, 9), DType::kF32);
  for (auto& backend : backends::all()) {
    for (const DType iteration : {DType::kF32, DType::kBF16}) {
      const auto& list = lists::kYouJiacheng;
      const auto settings = runner::settings_of(list, 1.0, iteration);
      INFO(backend.name);
      CHECK(runner::same_bits(
          runner::orthogonalize(backend, settings, runner::standard(list), DType::kF32, x),
          runner::orthogonalize(backend, settings, runner::gram(list, {1, 2, 3, 4}), DType::kF32,
                                x)));
    }
  }
}

TEST_CASE("newton-schulz: k equal singular values become p(1/sqrt(k))", "[unit][newton-schulz]") {
  // Values of the composed polynomials in float64. The columns are Keller Jordan, You Jiacheng,
  // Polar Express, and Polar Express with its raw list divided by 1.05.
  struct Row {
    int64_t k;
    double p[4];
  };
  const Row rows[] = {{1, {0.696436, 0.978346, 0.903537, 1.019028}},
                      {2, {1.108111, 1.025612, 1.134771, 0.878404}},
                      {3, {0.685785, 1.003227, 0.875116, 0.853579}},
                      {4, {0.765439, 0.985869, 1.086403, 0.884924}},
                      {8, {1.066968, 0.986131, 1.118166, 1.123551}},
                      {16, {0.714526, 0.987218, 1.004956, 0.975407}},
                      {32, {1.018687, 1.015565, 1.068126, 1.026066}},
                      {64, {0.688140, 0.984272, 0.908168, 0.909370}},
                      {128, {0.722762, 0.991424, 1.129372, 0.971245}},
                      {256, {1.070524, 1.031742, 0.997280, 1.091121}},
                      {512, {0.808607, 1.015239, 1.056817, 0.923162}}};
  const auto four = five_step_lists();
  for (auto& backend : backends::all()) {
    for (const Row& row : rows) {
      if (backend.slow && row.k > 64) continue;
      // Uses a Hadamard matrix if k is a power of two, and a cyclic permutation otherwise.
      const bool power = (row.k & (row.k - 1)) == 0;
      Matrix x(row.k, row.k);
      for (int64_t i = 0; i < row.k; ++i) x(i, (i + 1) % row.k) = 1;
      if (power) x = hadamard(row.k);
      const double unit = power ? std::sqrt(static_cast<double>(row.k)) : 1.0;
      for (size_t l = 0; l < 4; ++l) {
        INFO(backend.name << ", " << four[l].name << ", k = " << row.k);
        const Matrix o = standard(backend, four[l], DType::kF32, DType::kBF16, x);
        const Matrix expected = reference::scale(row.p[l] / unit, x);
        CHECK(reference::max_difference(o, expected) <= near(four[l]) + tolerance::printed(6));
      }
    }
  }
}

TEST_CASE("newton-schulz: a zero matrix in a batch stays zero and is counted",
          "[unit][newton-schulz]") {
  const Matrix x = reference::values(1, 6, 10), zero(6, 10);
  for (auto& backend : backends::all()) {
    for (const DType iteration : {DType::kF32, DType::kBF16}) {
      for (const Form form : {Form::kStandard, Form::kGram}) {
        INFO(backend.name << ", " << name_of(iteration));
        const auto& list = lists::kPolarModded;
        const auto settings = runner::settings_of(list, 1.02, iteration);
        const Method method{form, 5,
                            form == Form::kGram ? std::vector<int>{1, 3} : std::vector<int>{}};
        const auto r = runner::orthogonalize(backend, settings, method, DType::kF32,
                                             {zero, reference::rounded(x, DType::kF32), zero});
        CHECK(r.findings.zero_matrices == 2);
        CHECK(reference::frobenius(r.matrices[0]) == 0);
        CHECK(reference::frobenius(r.matrices[2]) == 0);
        CHECK(reference::frobenius(r.matrices[1]) > 1);
      }
    }
  }
}

TEST_CASE("newton-schulz: scaling by a power of two does not change the result",
          "[unit][newton-schulz]") {
  const Matrix x = reference::rounded(reference::gaussian(11, 29, 6), DType::kBF16);
  for (auto& backend : backends::all()) {
    for (const DType transport : {DType::kF32, DType::kBF16}) {
      for (const DType iteration : {DType::kF32, DType::kBF16}) {
        const Named l = five_step_lists()[2];
        const Matrix o = standard(backend, l, iteration, transport, x);
        // The norms are near 1e-30, 1e-19 (f32 squares underflow), 1e21 (f32 squares overflow) and
        // 1e30.
        for (const int k : {-103, -63, -1, 3, 67, 97}) {
          INFO(backend.name << ", 2^" << k);
          const Matrix scaled = reference::scale(std::ldexp(1.0, k), x);
          CHECK(runner::same_bits(o, standard(backend, l, iteration, transport, scaled)));
        }
      }
    }
  }
}

TEST_CASE("newton-schulz: the result of a matrix is bitwise independent of its batch",
          "[unit][newton-schulz]") {
  for (auto& backend : backends::all()) {
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{1, 7}, {13, 31}, {33, 65}}) {
      std::vector<Matrix> batch;
      for (uint64_t k = 0; k < 5; ++k)
        batch.push_back(reference::rounded(reference::gaussian(m, n, 20 + k), DType::kBF16));
      for (const DType iteration : {DType::kF32, DType::kBF16}) {
        for (const Form form : {Form::kStandard, Form::kGram}) {
          INFO(backend.name << ", " << m << " x " << n << ", " << name_of(iteration));
          const auto settings = runner::settings_of(lists::kPolarModded, 1.02, iteration);
          const Method method{form, 5,
                              form == Form::kGram ? std::vector<int>{2} : std::vector<int>{}};
          const auto together =
              runner::orthogonalize(backend, settings, method, DType::kBF16, batch).matrices;
          for (size_t k = 0; k < batch.size(); ++k) {
            CHECK(runner::same_bits(together[k], runner::orthogonalize(backend, settings, method,
                                                                       DType::kBF16, batch[k])));
          }
          const auto pair =
              runner::orthogonalize(backend, settings, method, DType::kBF16, {batch[3], batch[1]})
                  .matrices;
          CHECK(runner::same_bits(pair[0], together[3]));
          CHECK(runner::same_bits(pair[1], together[1]));
        }
      }
    }
  }
}

TEST_CASE("newton-schulz: makes exactly the planned products, all of them reserved",
          "[unit][newton-schulz]") {
  struct Case {
    reference::List list;
    Method method;
    int64_t square, gram, rectangle;  // numbers of products: m x m by m x m, X X^T, m x m by m x n
    // Number of sums Q = b R + a I. Each of them is a pass over a whole matrix.
    int64_t sums = 0;
  };
  const auto& pe = lists::kPolarModded;
  const auto& cubic = lists::kCubic;
  // With T steps, the quintic standard form computes T products of each kind. The Gram form with k
  // restarts computes 4T - 3(1 + k), 1 + k and 1 + k products. A cubic list does not need the
  // product R R.
  const Case cases[] = {
      {pe, runner::standard(pe), 5, 5, 5},      {cubic, runner::standard(cubic), 0, 5, 5},
      {pe, runner::gram(pe, {}), 17, 1, 1},     {pe, runner::gram(pe, {2}), 14, 2, 2},
      {pe, runner::gram(pe, {1, 3}), 11, 3, 3}, {cubic, runner::gram(cubic, {2}), 9, 2, 2, 2},
  };
  for (const Case& c : cases) {
    auto backend = backends::host(1);
    reference_ops::CountingOps ops(*backend.ops);
    backend.ops = &ops;
    const int64_t m = 6, n = 10;
    runner::orthogonalize(backend, runner::settings_of(c.list, 1.02, DType::kF32), c.method,
                          DType::kF32, reference::gaussian(m, n, 1));
    int64_t square = 0, gram = 0, rectangle = 0, sums = 0;
    for (const auto& p : ops.asked) {
      sums += !p.product;
      if (!p.product) continue;
      square += p.n == m && p.k == m;
      gram += p.n == m && p.k == n;
      rectangle += p.n == n && p.k == m;
      CHECK(p.symmetric == (p.n == m));
      CHECK(std::any_of(ops.reserved.begin(), ops.reserved.end(),
                        [&](const auto& r) { return r.m >= p.m && r.n == p.n && r.k == p.k; }));
    }
    CHECK(square == c.square);
    CHECK(gram == c.gram);
    CHECK(rectangle == c.rectangle);
    CHECK(sums == c.sums);
    // The planner's formula must give the number of products that were counted.
    if (c.list[0].c == 0) continue;
    const double md = m, nd = n;
    const double planned =
        orthogonalize_flops_full(c.method, m, n) - orthogonalize_flops(c.method, m, n);
    CHECK(planned ==
          static_cast<double>(square) * md * md * md + static_cast<double>(gram) * md * md * nd);
  }
}

TEST_CASE("newton-schulz: an empty matrix or batch enqueues nothing", "[unit][newton-schulz]") {
  auto backend = backends::host(1);
  reference_ops::CountingOps ops(*backend.ops);
  const auto settings = runner::settings_of(lists::kPolarModded, 1.02, DType::kF32);
  for (const auto& [m, n, count] :
       {std::tuple<int64_t, int64_t, int64_t>{0, 0, 1}, {0, 7, 2}, {3, 7, 0}}) {
    MatrixBatch raw;
    raw.rows = m, raw.cols = n, raw.ld = n, raw.count = count, raw.stride = m * n;
    Findings findings;
    const Method method = runner::standard(lists::kPolarModded);
    const OrthogonalizeArgs args{&settings, &method, raw, nullptr, nullptr};
    const Orthogonalization all(ops, *backend.stream, std::span(&args, 1), &findings);
    all.enqueue();
    const MatrixBatch out = all.results()[0];
    CHECK(out.rows == m);
    CHECK(out.cols == n);
    CHECK(out.count == count);
    CHECK(ops.asked.empty());
    CHECK(findings.zero_matrices == 0);
  }
}

TEST_CASE("newton-schulz: a non-finite matrix remains non-finite, so the pack detects it",
          "[unit][newton-schulz]") {
  for (auto& backend : backends::all()) {
    for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
      Matrix x = reference::values(3, 5, 8);
      x(4, 2) = bad;
      INFO(backend.name << ", " << bad);
      const Matrix o = standard(backend, five_step_lists()[2], DType::kF32, DType::kF32, x);
      CHECK(std::none_of(o.v.begin(), o.v.end(), [](double y) { return std::isfinite(y); }));
    }
  }
}
