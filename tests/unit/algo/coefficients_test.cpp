#include "algo/coefficients.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <string>

#include "algo/polar_express.hpp"
#include "base/error.hpp"
#include "support/numerics/coefficient_cases.hpp"
#include "support/tolerances.hpp"

using namespace muonrt;
using cases::as_is;
using cases::polar;
namespace lists = textbook::lists;

namespace {

CoefficientList make(const CoefficientSettings& s) {
  return make_coefficients(CoefficientFamily::kPolarExpress, s);
}

double relative(double x, double expected) { return std::fabs(x / expected - 1); }

/// Compares step by step; the interval [l, 2 - l] of each step is followed with the printed list.
void check_generated(const std::vector<Coefficients>& made, const textbook::List& expected) {
  REQUIRE(made.size() == expected.size());
  double l = 1e-3, u = 1;
  for (size_t t = 0; t < made.size(); ++t) {
    INFO("step " << t + 1 << ", l/u " << l / u);
    const double allowed = tolerance::generated(l / u);
    CHECK(relative(made[t].a, expected[t].a) <= allowed);
    CHECK(relative(made[t].b, expected[t].b) <= allowed);
    CHECK(relative(made[t].c, expected[t].c) <= allowed);
    l = textbook::compose({expected[t]}, l);
    u = 2 - l;
  }
}

}  // namespace

TEST_CASE("coefficients: the generator meets the published lists to their digits",
          "[unit][coefficients]") {
  check_generated(polar_express(5, 1e-3, 0.02, 1.02), lists::kPolarModded);
  check_generated(polar_express(7, 1e-3, 0.02, 1.02), lists::kPolarModded7);
  check_generated(polar_express(8, 1e-3, lists::kRawCushion, 1.0), lists::kPolarRaw);
  check_generated(polar_express(10, 1e-3, 0.02, 1.01), lists::kPolarReference);
  check_generated(polar_express(8, 1e-3, 0.0, 1.0), lists::kCans);
}

TEST_CASE("coefficients: the generator equals the textbook's for other bounds and cushions",
          "[unit][coefficients]") {
  for (const double lower : {1e-4, 1e-3, 7e-3, 1e-2, 0.2, 0.7}) {
    for (const double cushion : {0.0, 0.02, 0.1, 0.5}) {
      for (const double safety : {1.0, 1.01, 1.05}) {
        const auto made = polar_express(6, lower, cushion, safety);
        const auto expected = textbook::polar_express(lower, 6, cushion, safety);
        double l = lower, u = 1;
        for (size_t t = 0; t < made.size() && l / u < 0.9; ++t) {
          INFO("lower bound " << lower << ", cushion " << cushion << ", safety " << safety
                              << ", step " << t + 1);
          // Both are right to about 1e-12; the textbook's loop runs in double.
          CHECK(relative(made[t].a, expected[t].a) <= 4e-12);
          CHECK(relative(made[t].b, expected[t].b) <= 4e-12);
          CHECK(relative(made[t].c, expected[t].c) <= 4e-12);
          l = textbook::compose({expected[t]}, l);
          u = 2 - l;
        }
      }
    }
  }
}

TEST_CASE("coefficients: the printed decimals of derived lists come out", "[unit][coefficients]") {
  const auto raw = polar_express(8, 1e-3, lists::kRawCushion, 1.0);
  SECTION("over 1.01 on all but the last, four decimals") {
    const auto over = scaled({raw, 1.0}, 1.01).steps;
    for (size_t t = 0; t < raw.size(); ++t) {
      const Coefficients& x = t + 1 < raw.size() ? over[t] : raw[t];
      const auto& e = lists::kPolarEmerging[t];
      // The first a is 8.20516, printed as 8.2051.
      CHECK(std::fabs(x.a - e.a) <= (t == 0 ? 1e-4 : tolerance::printed(4)));
      CHECK(std::fabs(x.b - e.b) <= tolerance::printed(4));
      CHECK(std::fabs(x.c - e.c) <= tolerance::printed(4));
    }
  }
  SECTION("over 1.05 on all, full digits") {
    const auto list = make_coefficients(CoefficientFamily::kPolarExpress,
                                        polar(5, lists::kRawCushion, 1.05, SafetyMode::kAll));
    CHECK(list.input_safety == 1.0);
    check_generated(list.steps, lists::kPolarRaw105);
  }
}

TEST_CASE("coefficients: each family's defaults are its published form", "[unit][coefficients]") {
  const auto of = [](CoefficientFamily family) {
    return make_coefficients(family, default_settings(family));
  };
  const auto equal = [](const CoefficientList& list, const textbook::List& e) {
    REQUIRE(list.steps.size() == e.size());
    for (size_t t = 0; t < e.size(); ++t) {
      CHECK(list.steps[t].a == Approx(e[t].a).epsilon(1e-12));
      CHECK(list.steps[t].b == Approx(e[t].b).epsilon(1e-12));
      CHECK(list.steps[t].c == Approx(e[t].c).epsilon(1e-12));
    }
  };
  const auto pe = of(CoefficientFamily::kPolarExpress);
  equal(pe, lists::kPolarModded);
  CHECK(pe.input_safety == 1.02);
  const auto kj = of(CoefficientFamily::kKellerJordan);
  equal(kj, lists::kKellerJordan);
  CHECK(kj.input_safety == 1.0);
  const auto you = of(CoefficientFamily::kYouJiacheng);
  equal(you, lists::kYouJiacheng);
  CHECK(you.input_safety == 1.0);
  const auto cans = of(CoefficientFamily::kCans);
  equal(cans, {lists::kCans.begin(), lists::kCans.begin() + 5});
  CHECK(cans.input_safety == 1.02);
  const auto deepseek = of(CoefficientFamily::kDeepSeekV4);
  equal(deepseek, lists::kDeepSeekV4);
  CHECK(deepseek.input_safety == 1.0);
  const auto cubic = of(CoefficientFamily::kCubic);
  equal(cubic, lists::kCubic);
  CHECK(cubic.input_safety == 1.02);
  const auto classical = of(CoefficientFamily::kClassical);
  equal(classical, textbook::List(10, {1.875, -1.25, 0.375}));
  CHECK(classical.input_safety == 1.0);
  const auto aol = of(CoefficientFamily::kAol);
  equal(aol, lists::kAolFlash);
  CHECK(aol.input_safety == 1.0);
}

TEST_CASE("coefficients: the three safety modes differ as they should", "[unit][coefficients]") {
  const auto raw = polar_express(5, 1e-3, 0.02, 1.0);
  const auto none = make(polar(5, 0.02, 1.04, SafetyMode::kNone));
  const auto all = make(polar(5, 0.02, 1.04, SafetyMode::kAll));
  const auto inner = make(polar(5, 0.02, 1.04, SafetyMode::kInner));
  CHECK(none.input_safety == 1.04);
  CHECK(all.input_safety == 1.0);
  CHECK(inner.input_safety == 1.04);
  for (size_t t = 0; t < 5; ++t) {
    CHECK(none.steps[t].a == raw[t].a);
    CHECK(all.steps[t].a == Approx(raw[t].a / 1.04).epsilon(1e-14));
    CHECK(all.steps[t].b == Approx(raw[t].b / std::pow(1.04, 3)).epsilon(1e-14));
    CHECK(all.steps[t].c == Approx(raw[t].c / std::pow(1.04, 5)).epsilon(1e-14));
  }
  CHECK(inner.steps[0].a == Approx(raw[0].a / 1.04).epsilon(1e-14));
  // From the second step on the loop has seen the divided polynomial.
  CHECK(relative(inner.steps[1].a, raw[1].a / 1.04) > 1e-4);
}

namespace {

struct ImageRow {
  const char* name;
  textbook::List list;
  double safety;
  double slope, at_one, largest;  // p'(0); p(1); max on (0, 1]
  Range from_1e3, from_1e2;       // image of [1e-3, 1] and of [1e-2, 1]
};

textbook::List first(const textbook::List& list, int64_t n) {
  return {list.begin(), list.begin() + n};
}

/// By root finding on the derivatives of the composed polynomials in float64.
std::vector<ImageRow> image_rows() {
  const Range one = {1, 1}, raw = {0.876441, 1.123559}, cans = {0.884374, 1.119836};
  const Range aol = {-1.084441, 1.084441}, wide = {0.846647, 1.141127}, mid = {0.858873, 1.141127};
  return {
      {"keller jordan",
       lists::kKellerJordan,
       1,
       484.876,
       0.696436,
       1.202369,
       {0.470544, 1.202369},
       {0.681831, 1.134357}},
      {"you",
       lists::kYouJiacheng,
       1,
       492.750,
       0.978346,
       1.145020,
       {0.474982, 1.145020},
       {0.977751, 1.031775}},
      {"polar modded", lists::kPolarModded, 1.02, 970.067, 0.903537, 1.141127, wide, mid},
      {"polar modded 7", lists::kPolarModded7, 1.02, 3322.38, 1, 1, one, one},
      {"polar raw/1.05",
       lists::kPolarRaw105,
       1,
       803.949,
       1.019028,
       1.123559,
       {0.729003, 1.123559},
       {0.846097, 1.123559}},
      {"polar emerging 5",
       first(lists::kPolarEmerging, 5),
       1,
       976.283,
       1.027297,
       1.123597,
       {0.846195, 1.123597},
       {0.870444, 1.123597}},
      {"polar emerging 8", lists::kPolarEmerging, 1, 6363.46, 1, 1, one, one},
      {"polar raw", first(lists::kPolarRaw, 5), 1, 1026.06, 1.123559, 1.123559, raw, raw},
      {"polar reference", lists::kPolarReference, 1.01, 22293.7, 1, 1, one, one},
      {"polar reference 7",
       first(lists::kPolarReference, 7),
       1.01,
       3450.03,
       0.999998,
       0.999999,
       {0.999995, 0.999999},
       {0.999995, 0.999999}},
      {"cans", lists::kCansPrinted, 1, 1048.94, 1.005069, 1.119836, cans, cans},
      {"deepseek v4",
       lists::kDeepSeekV4,
       1,
       79262.8,
       1.000014,
       1.002017,
       {1, 1.000538},
       {1, 1.000538}},
      {"cubic", lists::kCubic, 1, 119.324, 0.774106, 1.3, {0.119140, 1.3}, {0.774106, 1.3}},
      {"aol", lists::kAolEmerging, 1, 104.065, -0.993521, 1.084441, aol, aol},
      {"aol flash",
       lists::kAolFlash,
       1,
       147.169,
       0.943827,
       1.050007,
       {0.146595, 1.050007},
       {0.940940, 1.050007}},
  };
}

}  // namespace

TEST_CASE("coefficients: images and slopes equal the tabulated ones", "[unit][coefficients]") {
  for (const ImageRow& row : image_rows()) {
    INFO(row.name);
    const CoefficientList list = as_is(row.list, row.safety);
    const double near = 1.5e-6;  // six decimals
    CHECK(relative(slope_at_zero(list), row.slope) <= 5e-6);
    CHECK(std::fabs(image(list, 1.0) - row.at_one) <= near);
    CHECK(std::fabs(image_range(list, 1e-9, 1).high - row.largest) <= near);
    const Range a = image_range(list, 1e-3, 1), b = image_range(list, 1e-2, 1);
    CHECK(std::fabs(a.low - row.from_1e3.low) <= near);
    CHECK(std::fabs(a.high - row.from_1e3.high) <= near);
    CHECK(std::fabs(b.low - row.from_1e2.low) <= near);
    CHECK(std::fabs(b.high - row.from_1e2.high) <= near);
  }
}

TEST_CASE("coefficients: known points of Keller Jordan and Polar Express", "[unit][coefficients]") {
  double x = 1;
  for (const double expected : {0.701, 1.113620, 0.720706, 1.089974, 0.696436}) {
    x = image(as_is(first(lists::kKellerJordan, 1)), x);
    CHECK(std::fabs(x - expected) <= tolerance::printed(6));
  }
  const CoefficientList kj = as_is(lists::kKellerJordan);
  const CoefficientList pe = as_is(lists::kPolarModded, 1.02);
  const double at[] = {1e-3, 1e-2, 0.1, 0.5, 0.9};
  const double kj_at[] = {0.470544, 0.698917, 0.712120, 0.765439, 0.682011};
  const double pe_at[] = {0.846647, 0.996775, 1.016459, 1.086403, 1.057436};
  for (size_t i = 0; i < 5; ++i) {
    CHECK(std::fabs(image(kj, at[i]) - kj_at[i]) <= tolerance::printed(6));
    CHECK(std::fabs(image(pe, at[i]) - pe_at[i]) <= tolerance::printed(6));
  }
  CHECK(std::fabs(image(kj, 0.0041114) - 1.202369) <= 1e-6);
  CHECK(std::fabs(image(kj, 0.093633) - 0.681831) <= 1e-6);
}

TEST_CASE("coefficients: seven steps are exact within one rounding of f32",
          "[unit][coefficients]") {
  const Range r = image_range(make(default_settings(CoefficientFamily::kPolarExpress, 7)), 1e-3, 1);
  CHECK(r.low == Approx(1 - 6.1e-8).margin(1e-9));
  CHECK(r.high == Approx(1 + 6.1e-8).margin(1e-9));
}

TEST_CASE("coefficients: a range is attained and never left", "[unit][coefficients]") {
  for (const ImageRow& row : image_rows()) {
    INFO(row.name);
    const CoefficientList list = as_is(row.list, row.safety);
    const Range r = image_range(list, 1e-3, 1.0);
    Range seen = {1e9, -1e9};
    for (int i = 0; i <= 100000; ++i) {
      const double y = image(list, 1e-3 * std::pow(1e3, i / 100000.0));
      seen = {std::min(seen.low, y), std::max(seen.high, y)};
    }
    CHECK(seen.low >= r.low - 1e-12);
    CHECK(seen.high <= r.high + 1e-12);
    CHECK(seen.low == Approx(r.low).margin(1e-4));
    CHECK(seen.high == Approx(r.high).margin(1e-4));
  }
}

TEST_CASE("coefficients: headroom equals the tabulated limits", "[unit][coefficients]") {
  const double near = tolerance::printed(3);
  CHECK(std::fabs(headroom(as_is(lists::kKellerJordan)) - 1.264) <= near);
  CHECK(std::fabs(headroom(as_is(lists::kDeepSeekV4)) - 1.264) <= near);
  CHECK(std::fabs(headroom(as_is(lists::kYouJiacheng)) - 1.325) <= near);
  CHECK(std::fabs(headroom(as_is(lists::kPolarRaw105)) - 1.055) <= near);
  CHECK(std::fabs(headroom(as_is(lists::kPolarModded, 1.02)) - 1.042) <= near);
  CHECK(std::fabs(headroom(as_is(lists::kPolarReference, 1.01)) - 1.021) <= near);
  CHECK(std::fabs(headroom(as_is(lists::kPolarEmerging)) - 1.011) <= near);
  CHECK(std::fabs(headroom(as_is(lists::kCubic)) - 1.183) <= near);
  CHECK(std::fabs(headroom(as_is(lists::kPolarRaw)) - 1.0) <= near);
  CHECK(std::fabs(headroom(as_is(lists::kCans)) - 1.0) <= near);
  // An input factor moves the limit by itself.
  CHECK(headroom(as_is(lists::kCans, 1.05)) ==
        Approx(1.05 * headroom(as_is(lists::kCans))).epsilon(1e-9));
}

TEST_CASE("coefficients: any number of steps up to the limit is generated and usable",
          "[unit][coefficients]") {
  for (int steps = 1; steps <= kMaxSteps; ++steps) {
    INFO(steps << " steps");
    const CoefficientList list = make(default_settings(CoefficientFamily::kPolarExpress, steps));
    CHECK(list.steps.size() == static_cast<size_t>(steps));
    const Range r = image_range(list, 1e-2, 1.0);
    if (steps >= 7) {
      CHECK(r.low == Approx(1).margin(1e-6));
      CHECK(r.high == Approx(1).margin(1e-6));
    }
  }
}
