#include <catch2/catch.hpp>
#include <limits>
#include <string>

#include "algo/coefficients.hpp"
#include "base/error.hpp"
#include "support/numerics/coefficient_cases.hpp"

using namespace muonrt;
using cases::polar;
namespace lists = textbook::lists;

namespace {

CoefficientSettings custom(const textbook::List& list, double safety = 1.0) {
  CoefficientSettings s =
      default_settings(CoefficientFamily::kCustom, static_cast<int>(list.size()));
  for (const auto& t : list) s.custom.push_back({t.a, t.b, t.c});
  s.safety = safety;
  return s;
}

textbook::List first(const textbook::List& list, int64_t n) {
  return {list.begin(), list.begin() + n};
}

std::string refusal(CoefficientFamily family, const CoefficientSettings& s,
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

TEST_CASE("coefficients: lists without headroom or with a change of sign are refused",
          "[unit][coefficients]") {
  const auto family = CoefficientFamily::kCustom;
  CHECK(contains(refusal(family, custom(first(lists::kPolarRaw, 5))), "no headroom"));
  CHECK(contains(refusal(family, custom(first(lists::kCans, 5))), "no headroom"));
  CHECK(contains(refusal(family, custom(lists::kAolEmerging)), "changes sign"));
  CHECK(contains(refusal(family, custom(lists::kAolEmerging)), "above 0.88"));
  CHECK(contains(refusal(family, custom(lists::kCubic)), "above 1.003"));
  CHECK(contains(refusal(family, custom({{-1.5, 0.5, 0}})), "changes sign"));
  CHECK(refusal(family, custom(first(lists::kPolarRaw, 5), 1.02)) == "accepted");
  CHECK(refusal(family, custom(lists::kCubic, 1.01)) == "accepted");
  CHECK(refusal(family, custom(lists::kDeepSeekV4)) == "accepted");
  CHECK(refusal(family, custom(lists::kPolarEmerging)) == "accepted");

  CoefficientSettings cans = default_settings(CoefficientFamily::kCans);
  CHECK(refusal(CoefficientFamily::kCans, cans) == "accepted");
  cans.safety = 1.0;
  CHECK(contains(refusal(CoefficientFamily::kCans, cans), "no headroom"));
  CHECK(contains(refusal(CoefficientFamily::kPolarExpress, polar(5, 0.02, 1.0)), "no headroom"));
}

TEST_CASE("coefficients: lists that lack headroom for half precision alone are taken in f32",
          "[unit][coefficients]") {
  const auto family = CoefficientFamily::kCustom;
  for (const DType half : {DType::kBF16, DType::kF16}) {
    CHECK(contains(refusal(family, custom(first(lists::kCans, 5)), half), "no headroom"));
    CHECK(contains(refusal(family, custom(lists::kCubic), half), "changes sign"));
  }
  const CoefficientList cans =
      make_coefficients(family, custom(first(lists::kCans, 5)), DType::kF32);
  const CoefficientList cubic = make_coefficients(family, custom(lists::kCubic), DType::kF32);
  for (const CoefficientList& list : {cans, cubic}) {
    CHECK(list.input_safety == 1.0);
    CHECK(has_headroom(list, DType::kF32));
  }
  CHECK(refusal(family, custom(first(lists::kPolarRaw, 5)), DType::kF32) == "accepted");
  // Its sign changes far below 1.
  CHECK(contains(refusal(family, custom(lists::kAolEmerging), DType::kF32), "above 0.88"));
}

TEST_CASE("coefficients: lists that explode within (0, 1] are refused at the step that does",
          "[unit][coefficients]") {
  const auto family = CoefficientFamily::kCustom;
  const auto repeated = [](textbook::Triple t, size_t n) { return custom(textbook::List(n, t)); };
  CHECK(contains(refusal(family, repeated({10, 10, 10}, 6)), "after step 1 "));
  CHECK(contains(refusal(family, repeated({1, 1, 1}, 8)), "after step 2 "));
  CHECK(contains(refusal(family, repeated({1e308, 1e308, 1e308}, 32)), "after step 1 "));
  // Each step continues one of another list: 4e11 at the end.
  const textbook::List strange = {{3.3939, -2.9069, 0.6426},
                                  {2.9871, -1.7045, 0.7079},
                                  {3.4291, -1.7572, 0.7145},
                                  {2.5404, -2.4834, 0.7101}};
  CHECK(contains(refusal(family, custom(strange)), "grows to "));
  // Back in bounds at the end, but half precision has lost it on the way.
  CHECK(contains(refusal(family, custom({{1e6, 0, 0}, {1e-6, 0, 0}})), "after step 1 "));
  CHECK(contains(refusal(family, custom({{4.01, 0, 0}})), "at most 4"));
  CHECK(contains(refusal(family, custom({{4, 0, 0}, {0.3, 0, 0}})), "accepted"));
  // Generated, but with less safety than so many steps need.
  CoefficientSettings thin = polar(20, 0.02, 1.01, SafetyMode::kNone);
  thin.lower_bound = 1e-12;
  CHECK(contains(refusal(CoefficientFamily::kPolarExpress, thin), "grows to "));
  CHECK(refusal(family, custom(textbook::lists::kPolarRaw, 1.05)) == "accepted");
}

TEST_CASE("coefficients: settings out of range are refused by name", "[unit][coefficients]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto pe = CoefficientFamily::kPolarExpress;
  const auto with = [](auto change) {
    CoefficientSettings s = default_settings(CoefficientFamily::kPolarExpress);
    change(s);
    return s;
  };
  for (const int steps : {0, -1, kMaxSteps + 1})
    CHECK(contains(refusal(pe, with([&](auto& s) { s.steps = steps; })), "steps"));
  for (const double bound : {0.0, -1e-3, 1.0, nan})
    CHECK(contains(refusal(pe, with([&](auto& s) { s.lower_bound = bound; })), "lower bound"));
  for (const double cushion : {-0.1, 1.0, nan})
    CHECK(contains(refusal(pe, with([&](auto& s) { s.cushion = cushion; })), "cushion"));
  for (const double safety : {0.99, 2.5, nan})
    CHECK(contains(refusal(pe, with([&](auto& s) { s.safety = safety; })), "safety"));

  CHECK(contains(refusal(CoefficientFamily::kKellerJordan, with([](auto&) {})), "not generated"));
  CoefficientSettings you = default_settings(CoefficientFamily::kYouJiacheng, 6);
  CHECK(contains(refusal(CoefficientFamily::kYouJiacheng, you), "set 5 steps"));
  CoefficientSettings cans = default_settings(CoefficientFamily::kCans);
  cans.cushion = 0.02;
  CHECK(contains(refusal(CoefficientFamily::kCans, cans), "cushion"));
  CoefficientSettings mine = custom(lists::kDeepSeekV4);
  mine.steps = 9;
  CHECK(contains(refusal(CoefficientFamily::kCustom, mine), "10 triples"));
  CHECK(contains(refusal(CoefficientFamily::kCustom, custom({{1.5, nan, 0}})), "not finite"));
  CHECK(contains(refusal(static_cast<CoefficientFamily>(55), custom(lists::kCubic)), "unknown"));
}
