#include "algo/restarts.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "algo/newton_schulz.hpp"
#include "base/error.hpp"
#include "support/coefficient_cases.hpp"

using namespace muonrt;
using cases::as_is;
namespace lists = textbook::lists;

namespace {

/// The published simulation: eigenvalues shifted by 4e-4, singular values up to 1.
RestartSearch published() {
  return {.perturbation = 4e-4, .good = 200, .bound = 200, .largest = 1};
}

double metric(const textbook::List& list, const std::vector<int>& restarts) {
  return restart_metric(as_is(list), restarts, published());
}

textbook::List first(const textbook::List& list, int64_t n) {
  return {list.begin(), list.begin() + n};
}

}  // namespace

TEST_CASE("restarts: the metric equals the tabulated condition numbers", "[unit][restarts]") {
  // By the simulation of Dao-AILab/gram-newton-schulz over 4001 points, repeated in Python; three
  // digits.
  const auto near = [](double expected) { return Approx(expected).epsilon(0.03); };
  CHECK(metric(lists::kPolarRaw105, {}) == near(2.7e12));
  CHECK(metric(lists::kPolarRaw105, {2}) == near(84.6));
  CHECK(metric(lists::kPolarRaw105, {1}) == near(456));
  CHECK(metric(lists::kPolarRaw105, {3}) == near(1.1e5));
  CHECK(metric(lists::kPolarRaw105, {1, 2}) == near(60.9));
  CHECK(metric(lists::kPolarModded, {}) == near(1.7e14));
  CHECK(metric(lists::kPolarModded, {2}) == near(119));
  CHECK(metric(lists::kPolarModded, {1}) == near(659));
  CHECK(metric(lists::kPolarModded, {3}) == near(4.1e6));
  CHECK(metric(lists::kPolarModded, {1, 2}) == near(70.6));
  CHECK(metric(first(lists::kPolarEmerging, 5), {1}) == near(631));
  CHECK(metric(first(lists::kPolarEmerging, 5), {1, 2}) == near(69.3));
  CHECK(metric(lists::kYouJiacheng, {}) == near(2.1e8));
  CHECK(metric(lists::kYouJiacheng, {2}) == near(53.2));
  CHECK(metric(lists::kYouJiacheng, {1, 3}) == near(34.8));
  CHECK(metric(lists::kKellerJordan, {}) == near(3.8e6));
  CHECK(metric(lists::kKellerJordan, {3}) == near(62.5));
  CHECK(metric(lists::kKellerJordan, {2}) == near(74.1));
  CHECK(metric(lists::kKellerJordan, {2, 3}) == near(19.1));
  CHECK(metric(lists::kCansPrinted, {1}) == near(7.3e4));
  CHECK(metric(lists::kCansPrinted, {1, 4}) == near(9.1e3));
  CHECK(metric(lists::kPolarEmerging, {1, 3}) == near(170));
  CHECK(metric(lists::kPolarEmerging, {1, 2, 4}) == near(57.4));
  CHECK(metric(lists::kDeepSeekV4, {2, 4, 6}) == near(72.6));
  CHECK(std::isinf(metric(lists::kDeepSeekV4, {})));
  CHECK(std::isinf(metric(lists::kPolarEmerging, {})));
}

TEST_CASE("restarts: the search takes the fewest restarts, and the best of those",
          "[unit][restarts]") {
  const auto search = [](const textbook::List& list) {
    return search_restarts(as_is(list), published());
  };
  using Places = std::vector<int>;
  CHECK(search(lists::kPolarRaw105) == Places{2});
  CHECK(search(lists::kPolarModded) == Places{2});
  CHECK(search(lists::kYouJiacheng) == Places{2});
  CHECK(search(lists::kKellerJordan) == Places{3});
  CHECK(search(first(lists::kPolarEmerging, 5)) == Places{1, 2});
  CHECK(search(lists::kPolarEmerging) == Places{1, 3});
  CHECK(search(lists::kDeepSeekV4) == Places{2, 4, 6});
  CHECK(search(lists::kCansPrinted) == std::nullopt);
  CHECK(search(first(lists::kPolarModded, 1)) == Places{});
}

TEST_CASE("restarts: each dtype gets what its roundoff needs", "[unit][restarts]") {
  const CoefficientList modded = as_is(lists::kPolarModded, 1.02);
  using Places = std::vector<int>;
  CHECK(find_restarts(modded, DType::kF16) == Places{2});
  CHECK(find_restarts(modded, DType::kF32) == Places{2});
  CHECK(find_restarts(as_is(lists::kKellerJordan), DType::kF32) == Places{3});
  // bf16 is rebuilt after every second step at the latest.
  CHECK(find_restarts(modded, DType::kBF16) == Places{2, 3});
  CHECK(find_restarts(as_is(lists::kYouJiacheng), DType::kBF16) == Places{1, 3});
  CHECK(find_restarts(as_is(lists::kKellerJordan), DType::kBF16) == Places{2, 3});
  // Bounded, but no restart makes it good: no more are spent than the length of a segment asks.
  CHECK(find_restarts(as_is(first(lists::kCans, 5), 1.02), DType::kF32).size() == 1);
}

TEST_CASE("restarts: no segment is longer than the search allows", "[unit][restarts]") {
  for (int steps = 1; steps <= kMaxSteps; ++steps) {
    const CoefficientList list = as_is(textbook::polar_express(1e-3, steps, 0.02, 1.02), 1.02);
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      INFO(steps << " steps in " << name_of(dtype));
      const RestartSearch how = restart_search(list, dtype);
      const auto found = search_restarts(list, how);
      if (steps <= 10) CHECK(found.has_value());
      if (steps > 5 * how.longest) CHECK_FALSE(found.has_value());  // four restarts: five segments
      if (!found) continue;
      int last = 0;
      for (const int i : *found) {
        CHECK(i > last);
        CHECK(i - last <= how.longest);
        last = i;
      }
      CHECK(last < steps);
      CHECK(steps - last <= how.longest);
      CHECK(restart_metric(list, *found, how) <= how.bound);
    }
  }
}

TEST_CASE("restarts: a list that none bounds is refused with the reason", "[unit][restarts]") {
  try {
    find_restarts(as_is(lists::kCansPrinted, 1.02), DType::kBF16);
    FAIL("accepted");
  } catch (const Error& e) {
    CHECK(e.status() == Status::kNotSupported);
    CHECK(e.message().find("bf16") != std::string::npos);
  }
}

TEST_CASE("restarts: a group's Gram form follows its family and dtype", "[unit][restarts]") {
  const auto make = [](CoefficientFamily family, DType dtype, int steps = 5) {
    return make_newton_schulz(family, default_settings(family, steps), dtype);
  };
  const auto pe = CoefficientFamily::kPolarExpress;
  const NewtonSchulz f32 = make(pe, DType::kF32);
  CHECK(f32.gram_bounded);
  CHECK(f32.gram_list.steps[0].a == f32.list.steps[0].a);
  CHECK(f32.gram_list.input_safety == 1.02);

  NewtonSchulzOptions chosen;
  chosen.safety_chosen = true;  // as is mode `all`, which this form has anyway
  CoefficientSettings all = default_settings(pe, 5);
  all.mode = SafetyMode::kAll;
  all.safety = 1.1;
  const NewtonSchulz kept = make_newton_schulz(pe, all, DType::kF16, chosen);
  CHECK(kept.gram_list.steps[0].a == kept.list.steps[0].a);
  CHECK(kept.gram_list.steps[0].a ==
        Approx(textbook::polar_express(1e-3, 5, 0.02, 1.0)[0].a / 1.1).epsilon(1e-12));

  const NewtonSchulz f16 = make(pe, DType::kF16);
  CHECK(f16.gram_bounded);
  CHECK(f16.gram_restarts == std::vector<int>{2});
  CHECK(f16.gram_list.input_safety == 1.0);
  const auto raw = textbook::polar_express(1e-3, 5, 0.02, 1.0);
  CHECK(f16.gram_list.steps[0].a == Approx(raw[0].a / 1.05).epsilon(1e-12));
  CHECK(f16.gram_list.steps[4].c == Approx(raw[4].c / std::pow(1.05, 5)).epsilon(1e-12));

  // A mode that the caller chose has the list's own safety.
  NewtonSchulzOptions mode;
  mode.mode_chosen = true;
  const NewtonSchulz own = make_newton_schulz(pe, default_settings(pe, 5), DType::kF16, mode);
  CHECK(own.gram_list.steps[0].a == own.list.steps[0].a);
  CHECK(own.gram_list.input_safety == 1.02);
  CoefficientSettings finished = default_settings(pe, 5);
  finished.mode = SafetyMode::kAll;
  CHECK(make_newton_schulz(pe, finished, DType::kF16, mode).gram_list.steps[0].a ==
        Approx(raw[0].a / 1.02).epsilon(1e-12));

  const NewtonSchulz cans = make(CoefficientFamily::kCans, DType::kF16);
  CHECK_FALSE(cans.gram_bounded);
  CHECK(permitted_form(cans, FormChoice::kAuto) == FormChoice::kStandard);
  CHECK(permitted_form(cans, FormChoice::kStandard) == FormChoice::kStandard);
  CHECK_THROWS_AS(permitted_form(cans, FormChoice::kGram), Error);
  CHECK(permitted_form(f16, FormChoice::kAuto) == FormChoice::kAuto);
  CHECK(permitted_form(f16, FormChoice::kGram) == FormChoice::kGram);
}
