#include "plan/method.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.hpp"

using namespace muonrt;

namespace {

Method choose(FormChoice choice, int64_t rows, int64_t cols, int steps = 5,
              const std::vector<int>& restarts = {2}) {
  return choose_method(choice, rows, cols, steps, restarts);
}

}  // namespace

TEST_CASE("method: auto chooses Gram from aspect 1.5 and short side 512, in both orientations",
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

TEST_CASE("method: the caller's form overrides the rule", "[unit][method]") {
  CHECK(choose(FormChoice::kStandard, 512, 4096).form == Form::kStandard);
  CHECK(choose(FormChoice::kStandard, 512, 4096).restarts.empty());
  CHECK(choose(FormChoice::kGram, 3, 4).form == Form::kGram);
  CHECK(choose(FormChoice::kGram, 4, 4).restarts == std::vector<int>{2});
}

TEST_CASE("method: restarts after the last step are omitted, invalid ones rejected",
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
  // The table contains costs in units of m^3 for an aspect ratio r. In the first column, symmetric
  // products have half the cost, and in the second column the full cost. T steps of the standard
  // form cost T (1 + 3 r) and T (2 + 4 r). Five steps of the Gram form with one restart cost 14 + 6
  // r and 28 + 8 r. The row with seven steps has two restarts.
  struct Row {
    Method method;
    double cubes, slope, plain_cubes, plain_slope;
  };
  const Method five = choose(FormChoice::kStandard, 1, 1);
  for (const Row& row :
       {Row{five, 5, 15, 10, 20}, Row{choose(FormChoice::kStandard, 1, 1, 7), 7, 21, 14, 28},
        Row{choose(FormChoice::kGram, 1, 1), 14, 6, 28, 8},
        Row{choose(FormChoice::kGram, 1, 1, 7, {1, 4}), 19, 9, 38, 12},
        // A restart before every step costs the same as the standard form.
        Row{choose(FormChoice::kGram, 1, 1, 5, {1, 2, 3, 4}), 5, 15, 10, 20}}) {
    for (const double aspect : {1, 2, 4, 8}) {
      const int64_t m = 4096, n = m * static_cast<int64_t>(aspect);
      const double unit = std::pow(static_cast<double>(m), 3);
      INFO(row.method.steps << " steps, aspect " << aspect);
      CHECK(orthogonalize_flops(row.method, m, n) == unit * (row.cubes + row.slope * aspect));
      CHECK(orthogonalize_flops(row.method, n, m) == orthogonalize_flops(row.method, m, n));
      CHECK(orthogonalize_flops_full(row.method, m, n) ==
            Approx(unit * (row.plain_cubes + row.plain_slope * aspect)).epsilon(1e-4));
    }
  }
}

TEST_CASE("method: the cost of a product is that of its FLOPs or of its memory, and its launch",
          "[unit][method]") {
  const Method five = choose(FormChoice::kStandard, 1, 1);
  // R = X X^T takes m^2 n FLOPs and accesses m (m + n) elements. R R takes m^3 FLOPs and accesses 3
  // m^2 elements. Z X takes 2 m^2 n FLOPs and accesses m (m + 2 n) elements.
  CHECK(orthogonalize_cost(five, 4096, 8192) ==
        orthogonalize_flops(five, 4096, 8192) + 15 * 0x1p20);
  const double m = 16, n = 65536;
  CHECK(orthogonalize_cost(five, 16, 65536) ==
        5 * 256 * (3 * m * m + m * (m + n) + m * (m + 2 * n)) + 15 * 0x1p20);
  // If four ranks share the work, each has a quarter of the columns of the long side.
  CHECK(orthogonalize_cost(five, 4096, 32768, 4) == orthogonalize_cost(five, 4096, 8192));
  // Launches dominate the cost of a tiny matrix, and their number is proportional to the number of
  // steps.
  const Method ten = choose(FormChoice::kStandard, 1, 1, 10);
  CHECK(orthogonalize_flops(five, 1, 1) == 5 * 4);
  CHECK(orthogonalize_cost(five, 1, 1) == 5 * 256 * 8 + 15 * 0x1p20);
  CHECK(orthogonalize_cost(ten, 1, 1) == 2 * orthogonalize_cost(five, 1, 1));
  CHECK(orthogonalize_cost(five, 0, 100) == 0);
  CHECK(orthogonalize_flops(five, 0, 100) == 0);
  CHECK(orthogonalize_flops_full(five, 100, 0) == 0);
}
