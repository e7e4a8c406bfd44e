#include "pipeline/forecast.hpp"

#include <catch2/catch.hpp>

#include "base/text.hpp"
#include "plan_cases.hpp"

using namespace muonrt;

namespace {

/// A unit of work is a second, so is a byte; a message takes a quarter of one.
PlanOptions options(int window) {
  PlanOptions o;
  o.window = window;
  o.rates = {1.0, 1.0, 0.25};
  return o;
}

double seconds(const std::vector<SlotLoad>& slots, int window, bool grouped,
               CommitMode commit = CommitMode::kAtomic) {
  return forecast(schedule(static_cast<int32_t>(slots.size()), window, commit, grouped), slots,
                  options(window));
}

}  // namespace

TEST_CASE("forecast: one slot takes its passes, its exchanges and its products, one after another",
          "[unit][pipeline]") {
  // Local passes take a twentieth of their bytes: pack 0.2, gather 0.25 + 4, unpack 0.3, products
  // 10, pack 0.1, return 0.25 + 5, vote 0.25, commit 0.25.
  const std::vector<SlotLoad> one = {{10, 4, 6, 2, 5}};
  const double gather = 0.2 + 0.25 + 6, products = 0.3 + 10 + 0.1, back = 0.25 + 5;
  const double expected = gather + products + back + 0.25 + 0.25;
  CHECK(seconds(one, 1, false) == Approx(expected));
  CHECK(seconds(one, 3, true) == Approx(expected));
}

TEST_CASE(
    "forecast: where exchanges bound a step, a group saves what a message takes for each slot",
    "[unit][pipeline]") {
  // Products take nothing: the link is never idle between the first gather and the last return.
  const std::vector<SlotLoad> slots(10, SlotLoad{0, 40, 40, 40, 40});
  for (const int window : {2, 3}) {
    const double apart = seconds(slots, window, false), grouped = seconds(slots, window, true);
    CAPTURE(window, apart, grouped);
    CHECK(apart == Approx(2 + 20 * 40.25 + 0.25 + 10 * 2));
    // Eight or seven gathers share the message of a return.
    CHECK(grouped == Approx(apart - (10 - window) * 0.25).epsilon(1e-9));
  }
}

TEST_CASE("forecast: directions that complement each other share a group's time",
          "[unit][pipeline]") {
  // A rank that only sends what it gathers, and only receives what comes back.
  const std::vector<SlotLoad> slots(6, SlotLoad{0, 40, 0, 0, 40});
  const double apart = seconds(slots, 1, false), grouped = seconds(slots, 1, true);
  CAPTURE(apart, grouped);
  CHECK(apart == Approx(2 + 12 * 40.25 + 0.25 + 6 * 2));
  // Two exchanges become one at five of six places, and wait for the later one's pack.
  CHECK(grouped == Approx(apart - 5 * (40.25 - 2)));
}

TEST_CASE("forecast: where products bound a step, exchanges hide behind them either way",
          "[unit][pipeline]") {
  const std::vector<SlotLoad> slots(10, SlotLoad{1000, 40, 40, 40, 40});
  const double apart = seconds(slots, 3, false), grouped = seconds(slots, 3, true);
  CHECK(grouped == Approx(apart));
  CHECK_FALSE(GroupForecast{apart, grouped}.worth());
  CHECK_FALSE(GroupForecast{100, 99.5}.worth());
  CHECK(GroupForecast{100, 98.5}.worth());
}

TEST_CASE("forecast: commits of an eager step lie between the products", "[unit][pipeline]") {
  const std::vector<SlotLoad> slots(4, SlotLoad{100, 0, 0, 0, 40});
  // A vote; then products, with two commits between them; the last return is waited for, committed,
  // and voted on again. Gathers of nothing are no messages.
  CHECK(seconds(slots, 2, false, CommitMode::kEager) ==
        Approx(0.25 + 4 * 100 + 2 * 2 + 40.25 + 2 + 0.25));
}

TEST_CASE("forecast: a plan's own slots, in whatever mesh", "[unit][pipeline]") {
  plan_case::Case c;
  const auto on = plan_case::mesh({2, 2});
  for (int i = 0; i < 24; ++i) plan_case::add(c, plan_case::muon(cat("w", i), on, {64, 64}, 0), {});
  c.problem.options.chunk_bytes = 8192;
  const auto with = [&](const MachineRates& rates) {
    return forecast_groups(Plan(c.problem), rates);
  };
  const GroupForecast slow_link = with({1e12, 1, 1});
  CHECK(slow_link.apart > 0);
  CHECK(slow_link.grouped < slow_link.apart);
  const GroupForecast slow_products = with({1, 1e12, 1e-9});
  CHECK(slow_products.apart == Approx(slow_products.grouped));
  CHECK_FALSE(slow_products.worth());
  // Functions of the caller's exchange as they like.
  for (ParamSpec& spec : c.problem.params) spec.carried = true, spec.owner = 0;
  CHECK_FALSE(groupable(Plan(c.problem)));
  const GroupForecast carried = with({1e12, 1, 1});
  CHECK(carried.apart == carried.grouped);
  // One rank alone sends nothing.
  plan_case::Case alone;
  for (int i = 0; i < 12; ++i)
    plan_case::add(alone, plan_case::muon(cat("w", i), plan_case::mesh({1}), {64, 64}, 0), {});
  alone.problem.options.chunk_bytes = 8192;
  CHECK_FALSE(forecast_groups(Plan(alone.problem), {1e12, 1e9, 1}).worth());
}
