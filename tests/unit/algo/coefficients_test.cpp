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
namespace lists = reference::lists;

namespace {

reference::List first(const reference::List& list, int64_t n) {
  return {list.begin(), list.begin() + n};
}

CoefficientList make(const CoefficientSettings& s) {
  return make_coefficients(CoefficientFamily::kPolarExpress, s);
}

double relative(double x, double expected) { return std::fabs(x / expected - 1); }

/// Compares each step with the published list. The interval [l, 2 - l] of each step is computed
/// with the published list.
void check_generated(const std::vector<Coefficients>& made, const reference::List& expected) {
  REQUIRE(made.size() == expected.size());
  double l = 1e-3, u = 1;
  for (size_t t = 0; t < made.size(); ++t) {
    INFO("step " << t + 1 << ", l/u " << l / u);
    const double allowed = tolerance::generated(l / u);
    CHECK(relative(made[t].a, expected[t].a) <= allowed);
    CHECK(relative(made[t].b, expected[t].b) <= allowed);
    CHECK(relative(made[t].c, expected[t].c) <= allowed);
    l = reference::compose({expected[t]}, l);
    u = 2 - l;
  }
}

}  // namespace

TEST_CASE("coefficients: the generator gives all digits of the published lists",
          "[unit][coefficients]") {
  check_generated(polar_express(5, 1e-3, 0.02, 1.02), lists::kPolarModded);
  check_generated(polar_express(7, 1e-3, 0.02, 1.02), lists::kPolarModded7);
  check_generated(polar_express(8, 1e-3, lists::kRawCushion, 1.0), lists::kPolarRaw);
  check_generated(polar_express(10, 1e-3, 0.02, 1.01), lists::kPolarReference);
  check_generated(polar_express(8, 1e-3, 0.0, 1.0), lists::kCans);
}

TEST_CASE("coefficients: the generator equals the reference for other bounds and cushions",
          "[unit][coefficients]") {
  for (const double lower : {1e-4, 1e-3, 7e-3, 1e-2, 0.2, 0.7}) {
    for (const double cushion : {0.0, 0.02, 0.1, 0.5}) {
      for (const double safety : {1.0, 1.01, 1.05}) {
        const auto made = polar_express(6, lower, cushion, safety);
        const auto expected = reference::polar_express(lower, 6, cushion, safety);
        double l = lower, u = 1;
        for (size_t t = 0; t < made.size() && l / u < 0.9; ++t) {
          INFO("lower bound " << lower << ", cushion " << cushion << ", safety " << safety
                              << ", step " << t + 1);
          // Both lists are accurate to about 1e-12, because the reference uses double precision.
          CHECK(relative(made[t].a, expected[t].a) <= 4e-12);
          CHECK(relative(made[t].b, expected[t].b) <= 4e-12);
          CHECK(relative(made[t].c, expected[t].c) <= 4e-12);
          l = reference::compose({expected[t]}, l);
          u = 2 - l;
        }
      }
    }
  }
}

TEST_CASE("coefficients: safety mode all gives the published digits", "[unit][coefficients]") {
  const auto list = make_coefficients(CoefficientFamily::kPolarExpress,
                                      polar(5, lists::kRawCushion, 1.05, SafetyMode::kAll));
  CHECK(list.input_safety == 1.0);
  check_generated(list.steps, lists::kPolarRaw105);
}

TEST_CASE("coefficients: each family's defaults are its published form", "[unit][coefficients]") {
  const auto equal = [](const CoefficientList& list, const reference::List& e) {
    REQUIRE(list.steps.size() == e.size());
    for (size_t t = 0; t < e.size(); ++t) {
      CHECK(list.steps[t].a == Approx(e[t].a).epsilon(1e-12));
      CHECK(list.steps[t].b == Approx(e[t].b).epsilon(1e-12));
      CHECK(list.steps[t].c == Approx(e[t].c).epsilon(1e-12));
    }
  };
  struct Row {
    CoefficientFamily family;
    reference::List list;
    double input_safety;
  };
  for (const Row& row :
       {Row{CoefficientFamily::kPolarExpress, lists::kPolarModded, 1.02},
        {CoefficientFamily::kKellerJordan, lists::kKellerJordan, 1.0},
        {CoefficientFamily::kYouJiacheng, lists::kYouJiacheng, 1.0},
        {CoefficientFamily::kCans, first(lists::kCans, 5), 1.02},
        {CoefficientFamily::kDeepSeekV4, lists::kDeepSeekV4, 1.0},
        {CoefficientFamily::kCubic, lists::kCubic, 1.02},
        {CoefficientFamily::kClassical, reference::List(10, {1.875, -1.25, 0.375}), 1.0},
        {CoefficientFamily::kAol, lists::kAolFlash, 1.0}}) {
    INFO(name_of(row.family));
    const CoefficientList made = make_coefficients(row.family, default_settings(row.family));
    equal(made, row.list);
    CHECK(made.input_safety == row.input_safety);
  }
}

TEST_CASE("coefficients: the three safety modes", "[unit][coefficients]") {
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
  // From the second step on, the generator starts from the previous polynomial divided by the
  // safety factor. Its coefficients are therefore not just those of `raw` divided by this factor.
  CHECK(relative(inner.steps[1].a, raw[1].a / 1.04) > 1e-4);
}

namespace {

struct ImageRow {
  const char* name;
  reference::List list;
  double safety, slope, at_one, largest;        // p'(0), p(1), maximum on (0, 1]
  double low_1e3, high_1e3, low_1e2, high_1e2;  // images of [1e-3, 1] and [1e-2, 1]
};

/// Returns values that were computed in float64 from the roots of the derivatives of the composed
/// polynomials.
std::vector<ImageRow> image_rows() {
  const auto five = [](const reference::List& list) { return first(list, 5); };
  const auto& reference = lists::kPolarReference;
  return {
      {"keller jordan", lists::kKellerJordan, 1, 484.876, 0.696436, 1.202369, 0.470544, 1.202369,
       0.681831, 1.134357},
      {"you", lists::kYouJiacheng, 1, 492.750, 0.978346, 1.145020, 0.474982, 1.145020, 0.977751,
       1.031775},
      {"polar modded", lists::kPolarModded, 1.02, 970.067, 0.903537, 1.141127, 0.846647, 1.141127,
       0.858873, 1.141127},
      {"polar modded 7", lists::kPolarModded7, 1.02, 3322.38, 1, 1, 1, 1, 1, 1},
      {"polar raw/1.05", lists::kPolarRaw105, 1, 803.949, 1.019028, 1.123559, 0.729003, 1.123559,
       0.846097, 1.123559},
      {"polar emerging 5", five(lists::kPolarEmerging), 1, 976.283, 1.027297, 1.123597, 0.846195,
       1.123597, 0.870444, 1.123597},
      {"polar emerging 8", lists::kPolarEmerging, 1, 6363.46, 1, 1, 1, 1, 1, 1},
      {"polar raw", five(lists::kPolarRaw), 1, 1026.06, 1.123559, 1.123559, 0.876441, 1.123559,
       0.876441, 1.123559},
      {"polar reference", reference, 1.01, 22293.7, 1, 1, 1, 1, 1, 1},
      {"polar reference 7", first(reference, 7), 1.01, 3450.03, 0.999998, 0.999999, 0.999995,
       0.999999, 0.999995, 0.999999},
      {"cans", lists::kCansPrinted, 1, 1048.94, 1.005069, 1.119836, 0.884374, 1.119836, 0.884374,
       1.119836},
      {"deepseek v4", lists::kDeepSeekV4, 1, 79262.8, 1.000014, 1.002017, 1, 1.000538, 1, 1.000538},
      {"cubic", lists::kCubic, 1, 119.324, 0.774106, 1.3, 0.119140, 1.3, 0.774106, 1.3},
      {"aol", lists::kAolEmerging, 1, 104.065, -0.993521, 1.084441, -1.084441, 1.084441, -1.084441,
       1.084441},
      {"aol flash", lists::kAolFlash, 1, 147.169, 0.943827, 1.050007, 0.146595, 1.050007, 0.940940,
       1.050007},
  };
}

}  // namespace

TEST_CASE("coefficients: images and slopes equal tabulated values", "[unit][coefficients]") {
  for (const ImageRow& row : image_rows()) {
    INFO(row.name);
    const CoefficientList list = as_is(row.list, row.safety);
    const double near = 1.5e-6;  // the tabulated values have six decimals
    CHECK(relative(slope_at_zero(list), row.slope) <= 5e-6);
    CHECK(std::fabs(image(list, 1.0) - row.at_one) <= near);
    CHECK(std::fabs(image_range(list, 1e-9, 1).high - row.largest) <= near);
    const Range a = image_range(list, 1e-3, 1), b = image_range(list, 1e-2, 1);
    CHECK(std::fabs(a.low - row.low_1e3) <= near);
    CHECK(std::fabs(a.high - row.high_1e3) <= near);
    CHECK(std::fabs(b.low - row.low_1e2) <= near);
    CHECK(std::fabs(b.high - row.high_1e2) <= near);
  }
}

TEST_CASE("coefficients: image_range is attained and never exceeded", "[unit][coefficients]") {
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
  // A safety factor for the input increases the headroom by the same factor.
  CHECK(headroom(as_is(lists::kCans, 1.05)) ==
        Approx(1.05 * headroom(as_is(lists::kCans))).epsilon(1e-9));
}

TEST_CASE("coefficients: every number of steps up to kMaxSteps is generated and usable",
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

namespace {

CoefficientSettings custom(const reference::List& list, double safety = 1.0) {
  CoefficientSettings s =
      default_settings(CoefficientFamily::kCustom, static_cast<int>(list.size()));
  for (const auto& t : list) s.custom.push_back({t.a, t.b, t.c});
  s.safety = safety;
  return s;
}

std::string error_of(CoefficientFamily family, const CoefficientSettings& s,
                     DType iteration = DType::kBF16) {
  try {
    make_coefficients(family, s, iteration);
  } catch (const Error& e) {
    CHECK(e.status() == Status::kInvalidArgument);
    return e.message();
  }
  return "accepted";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("coefficients: lists without headroom or with a change of sign are rejected",
          "[unit][coefficients]") {
  const auto family = CoefficientFamily::kCustom;
  CHECK(contains(error_of(family, custom(first(lists::kPolarRaw, 5))), "no headroom"));
  CHECK(contains(error_of(family, custom(first(lists::kCans, 5))), "no headroom"));
  CHECK(contains(error_of(family, custom(lists::kAolEmerging)), "changes sign"));
  CHECK(contains(error_of(family, custom(lists::kAolEmerging)), "above 0.88"));
  CHECK(contains(error_of(family, custom(lists::kCubic)), "above 1.003"));
  CHECK(contains(error_of(family, custom({{-1.5, 0.5, 0}})), "changes sign"));
  CHECK(error_of(family, custom(first(lists::kPolarRaw, 5), 1.02)) == "accepted");
  CHECK(error_of(family, custom(lists::kCubic, 1.01)) == "accepted");
  CHECK(error_of(family, custom(lists::kDeepSeekV4)) == "accepted");
  CHECK(error_of(family, custom(lists::kPolarEmerging)) == "accepted");

  CoefficientSettings cans = default_settings(CoefficientFamily::kCans);
  CHECK(error_of(CoefficientFamily::kCans, cans) == "accepted");
  cans.safety = 1.0;
  CHECK(contains(error_of(CoefficientFamily::kCans, cans), "no headroom"));
  CHECK(contains(error_of(CoefficientFamily::kPolarExpress, polar(5, 0.02, 1.0)), "no headroom"));
}

TEST_CASE("coefficients: lists with headroom only for f32 are accepted in f32",
          "[unit][coefficients]") {
  const auto family = CoefficientFamily::kCustom;
  for (const DType half : {DType::kBF16, DType::kF16}) {
    CHECK(contains(error_of(family, custom(first(lists::kCans, 5)), half), "no headroom"));
    CHECK(contains(error_of(family, custom(lists::kCubic), half), "changes sign"));
  }
  const CoefficientList cans =
      make_coefficients(family, custom(first(lists::kCans, 5)), DType::kF32);
  const CoefficientList cubic = make_coefficients(family, custom(lists::kCubic), DType::kF32);
  for (const CoefficientList& list : {cans, cubic}) {
    CHECK(list.input_safety == 1.0);
    CHECK(has_headroom(list, DType::kF32));
  }
  CHECK(error_of(family, custom(first(lists::kPolarRaw, 5)), DType::kF32) == "accepted");
  // The polynomial changes its sign far below 1.
  CHECK(contains(error_of(family, custom(lists::kAolEmerging), DType::kF32), "above 0.88"));
}

TEST_CASE("coefficients: lists that explode within (0, 1] are rejected with the step",
          "[unit][coefficients]") {
  const auto family = CoefficientFamily::kCustom;
  const auto repeated = [](reference::Triple t, size_t n) { return custom(reference::List(n, t)); };
  CHECK(contains(error_of(family, repeated({10, 10, 10}, 6)), "after step 1 "));
  CHECK(contains(error_of(family, repeated({1, 1, 1}, 8)), "after step 2 "));
  CHECK(contains(error_of(family, repeated({1e308, 1e308, 1e308}, 32)), "after step 1 "));
  // Each step comes from a different list, and the values grow to 4e11.
  const reference::List strange = {{3.3939, -2.9069, 0.6426},
                                   {2.9871, -1.7045, 0.7079},
                                   {3.4291, -1.7572, 0.7145},
                                   {2.5404, -2.4834, 0.7101}};
  CHECK(contains(error_of(family, custom(strange)), "grows to "));
  // The final value is in range, but an intermediate value overflows half precision.
  CHECK(contains(error_of(family, custom({{1e6, 0, 0}, {1e-6, 0, 0}})), "after step 1 "));
  CHECK(contains(error_of(family, custom({{4.01, 0, 0}})), "at most 4"));
  CHECK(contains(error_of(family, custom({{4, 0, 0}, {0.3, 0, 0}})), "accepted"));
  // The safety factor of this generated list is too small for its number of steps.
  CoefficientSettings thin = polar(20, 0.02, 1.01, SafetyMode::kNone);
  thin.lower_bound = 1e-12;
  CHECK(contains(error_of(CoefficientFamily::kPolarExpress, thin), "grows to "));
  CHECK(error_of(family, custom(reference::lists::kPolarRaw, 1.05)) == "accepted");
}

TEST_CASE("coefficients: settings out of range are rejected with their name",
          "[unit][coefficients]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto pe = CoefficientFamily::kPolarExpress;
  const auto with = [](auto change) {
    CoefficientSettings s = default_settings(CoefficientFamily::kPolarExpress);
    change(s);
    return s;
  };
  for (const int steps : {0, -1, kMaxSteps + 1})
    CHECK(contains(error_of(pe, with([&](auto& s) { s.steps = steps; })), "steps"));
  for (const double bound : {0.0, -1e-3, 1.0, nan})
    CHECK(contains(error_of(pe, with([&](auto& s) { s.lower_bound = bound; })), "lower bound"));
  for (const double cushion : {-0.1, 1.0, nan})
    CHECK(contains(error_of(pe, with([&](auto& s) { s.cushion = cushion; })), "cushion"));
  for (const double safety : {0.99, 2.5, nan})
    CHECK(contains(error_of(pe, with([&](auto& s) { s.safety = safety; })), "safety"));

  CHECK(contains(error_of(CoefficientFamily::kKellerJordan, with([](auto&) {})), "not generated"));
  CoefficientSettings you = default_settings(CoefficientFamily::kYouJiacheng, 6);
  CHECK(contains(error_of(CoefficientFamily::kYouJiacheng, you), "set 5 steps"));
  CoefficientSettings cans = default_settings(CoefficientFamily::kCans);
  cans.cushion = 0.02;
  CHECK(contains(error_of(CoefficientFamily::kCans, cans), "cushion"));
  CoefficientSettings mine = custom(lists::kDeepSeekV4);
  mine.steps = 9;
  CHECK(contains(error_of(CoefficientFamily::kCustom, mine), "10 triples"));
  CHECK(contains(error_of(CoefficientFamily::kCustom, custom({{1.5, nan, 0}})), "not finite"));
  CHECK(contains(error_of(static_cast<CoefficientFamily>(55), custom(lists::kCubic)), "unknown"));
}
