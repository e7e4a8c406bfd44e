#include "plan/method.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.hpp"
#include "support/catalogue.hpp"

using namespace muonrt;

namespace {

Method choose(FormChoice choice, int64_t rows, int64_t cols, int steps = 5,
              const std::vector<int>& restarts = {2}) {
  return choose_method(choice, rows, cols, steps, restarts);
}

}  // namespace

TEST_CASE("method: Gram is chosen from aspect 1.5 and short side 512 on, either way round",
          "[unit][method]") {
  const auto form = [](int64_t r, int64_t c) {
    const Form f = choose(FormChoice::kAuto, r, c).form;
    CHECK(choose(FormChoice::kAuto, c, r).form == f);
    return f;
  };
  CHECK(form(512, 768) == Form::kGram);
  CHECK(form(512, 767) == Form::kStandard);
  CHECK(form(511, 4096) == Form::kStandard);
  CHECK(form(513, 770) == Form::kGram);
  CHECK(form(513, 769) == Form::kStandard);
  CHECK(form(1024, 1024) == Form::kStandard);
  CHECK(form(7168, 18432) == Form::kGram);
  CHECK(form(1, 100000) == Form::kStandard);
  CHECK(form(int64_t{1} << 40, int64_t{1} << 62) == Form::kGram);
}

TEST_CASE("method: the caller's form wins over the rule", "[unit][method]") {
  CHECK(choose(FormChoice::kStandard, 512, 4096).form == Form::kStandard);
  CHECK(choose(FormChoice::kStandard, 512, 4096).restarts.empty());
  CHECK(choose(FormChoice::kGram, 3, 4).form == Form::kGram);
  CHECK(choose(FormChoice::kGram, 4, 4).restarts == std::vector<int>{2});
}

TEST_CASE("method: restarts that no step follows are left out, bad ones refused",
          "[unit][method]") {
  CHECK(choose(FormChoice::kGram, 4, 8, 2, {1, 2, 5}).restarts == std::vector<int>{1});
  CHECK(choose(FormChoice::kGram, 4, 8, 1, {2}).restarts.empty());
  CHECK_THROWS_AS(choose(FormChoice::kGram, 4, 8, 5, {0}), Error);
  CHECK_THROWS_AS(choose(FormChoice::kGram, 4, 8, 5, {2, 2}), Error);
  CHECK_THROWS_AS(choose(FormChoice::kGram, 4, 8, 5, {3, 1}), Error);
  CHECK_THROWS_AS(choose(FormChoice::kAuto, 4, 8, 0), Error);
  CHECK_THROWS_AS(choose(FormChoice::kAuto, -4, 8), Error);
}

TEST_CASE("method: FLOPs follow the tabulated counts", "[unit][method]") {
  // In units of m^3 with T = 5 and aspect r: standard, symmetric 5 (1 + 3 r), plain 5 (2 + 4 r);
  // Gram with one restart, 14 + 6 r and 28 + 8 r.
  const int64_t m = 4096;
  const double unit = std::pow(static_cast<double>(m), 3);
  const Method standard = choose(FormChoice::kStandard, m, m);
  const Method gram = choose(FormChoice::kGram, m, m);
  const double aspect[] = {1, 2, 4, 8};
  const double standard_symmetric[] = {20, 35, 65, 125}, standard_plain[] = {30, 50, 90, 170};
  const double gram_symmetric[] = {20, 26, 38, 62}, gram_plain[] = {36, 44, 60, 92};
  for (size_t i = 0; i < 4; ++i) {
    const int64_t n = m * static_cast<int64_t>(aspect[i]);
    const auto near = [&](double x) { return Approx(x * unit).epsilon(1e-4); };
    CHECK(orthogonalize_flops(standard, m, n) == near(standard_symmetric[i]));
    CHECK(orthogonalize_flops_plain(standard, m, n) == near(standard_plain[i]));
    CHECK(orthogonalize_flops(gram, m, n) == near(gram_symmetric[i]));
    CHECK(orthogonalize_flops_plain(gram, m, n) == near(gram_plain[i]));
    CHECK(orthogonalize_flops(gram, n, m) == orthogonalize_flops(gram, m, n));
  }
}

TEST_CASE("method: FLOPs are the formula, cost has a constant for each product", "[unit][method]") {
  for (const auto& s : catalogue::kShapes) {
    const double m = static_cast<double>(std::min(s.rows, s.cols));
    const double n = static_cast<double>(std::max(s.rows, s.cols));
    INFO(s.rows << " x " << s.cols);
    const Method standard = choose(FormChoice::kStandard, s.rows, s.cols, 7);
    CHECK(orthogonalize_flops(standard, s.rows, s.cols) == 7 * (3 * m * m * n + m * m * m));
    const Method gram = choose(FormChoice::kGram, s.rows, s.cols, 7, {1, 4});
    CHECK(orthogonalize_flops(gram, s.rows, s.cols) ==
          3 * 3 * m * m * n + (4 * 7 - 3 * 3) * m * m * m);
  }
  // A tiny matrix costs its launches, and more steps cost more of them.
  const Method five = choose(FormChoice::kStandard, 1, 1),
               ten = choose(FormChoice::kStandard, 1, 1, 10);
  CHECK(orthogonalize_flops(five, 1, 1) == 5 * 4);
  CHECK(orthogonalize_cost(five, 1, 1) == 5 * 4 + 15 * 0x1p20);
  CHECK(orthogonalize_cost(ten, 1, 1) == 2 * orthogonalize_cost(five, 1, 1));
  CHECK(orthogonalize_cost(five, 0, 100) == 0);
  CHECK(orthogonalize_flops(five, 0, 100) == 0);
  CHECK(orthogonalize_flops_plain(five, 100, 0) == 0);
}

TEST_CASE("method: with a restart before every step Gram costs what the standard form costs",
          "[unit][method]") {
  const Method all = choose(FormChoice::kGram, 600, 2400, 5, {1, 2, 3, 4});
  const Method standard = choose(FormChoice::kStandard, 600, 2400);
  CHECK(orthogonalize_flops(all, 600, 2400) == orthogonalize_flops(standard, 600, 2400));
}
