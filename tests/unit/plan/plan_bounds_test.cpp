#include <catch2/catch.hpp>
#include <functional>
#include <numeric>

#include "plan/owners/packing_bound.hpp"
#include "unit/layout/layout_random.hpp"

using namespace muonrt;

namespace {

constexpr int64_t kFar = int64_t{1} << 40;

/// Smallest makespan, by trying everything.
int64_t optimum(const std::vector<int64_t>& costs, size_t ranks) {
  std::vector<int64_t> load(ranks, 0);
  int64_t best = INT64_MAX;
  const std::function<void(size_t)> place = [&](size_t i) {
    if (i == costs.size()) {
      best = std::min(best, *std::max_element(load.begin(), load.end()));
      return;
    }
    for (int64_t& there : load) {
      there += costs[i];
      if (there < best) place(i + 1);
      there -= costs[i];
      if (there == 0) break;  // the other empty ranks are alike
    }
  };
  place(0);
  return best;
}

std::vector<CostCount> counted(std::vector<int64_t> costs) {
  std::sort(costs.rbegin(), costs.rend());
  std::vector<CostCount> out;
  for (const int64_t c : costs) {
    if (out.empty() || out.back().cost != c) out.push_back({c, 0});
    ++out.back().count;
  }
  return out;
}

}  // namespace

TEST_CASE("bounds: mean, largest item and pigeonhole, worked by hand", "[unit][plan]") {
  CHECK(packing_bound({}, 4, 0, kFar) == 0);
  CHECK(packing_bound({{10, 3}}, 4, 0, kFar) == 10);          // the largest
  CHECK(packing_bound({{1, 10}}, 4, 0, kFar) == 3);           // 10 / 4, whole items
  CHECK(packing_bound({{10, 5}}, 4, 0, kFar) == 20);          // five on four ranks: one gets two
  CHECK(packing_bound({{10, 4}, {7, 1}}, 4, 0, kFar) == 17);  // 7 joins some 10
  CHECK(packing_bound({{100, 9}}, 4, 0, kFar) == 300);        // nine on four: one gets three
  CHECK(packing_bound({{10, 3}}, 4, 12, kFar) == 12);         // no worse than what is known
  CHECK(packing_bound({{5, 2}, {3, 2}, {2, 1}}, 1, 0, kFar) == 18);
}

TEST_CASE("bounds: packing into bins proves what mean and pigeonhole cannot", "[unit][plan]") {
  // 96 of 35 and 64 of 20 on 48 ranks: the mean is 96.7. Below 105 a rank takes at most two of 35
  // and one of 20, one and three, or none and five: with weights 2/5 and 1/5 a rank holds at most
  // 1, and 96 * 2/5 + 64 / 5 = 51.2 are needed.
  CHECK(packing_bound({{35, 96}, {20, 64}}, 48, 0, kFar) >= 105);
  // 240 of 35 and 160 of 20 on 256 ranks: below 55 no 20 fits beside a 35, and the 16 ranks left
  // hold two 20s each.
  CHECK(packing_bound({{35, 240}, {20, 160}}, 256, 0, 55) == 55);
}

TEST_CASE("bounds: no bound is above the optimum, and most meet it", "[unit][plan][property]") {
  int met = 0, tried = 0;
  CHECK(rc::check("small problems", [&] {
    const auto ranks = static_cast<size_t>(random_layout::pick(1, 4));
    const int64_t count = random_layout::pick(1, 9), sizes = random_layout::pick(1, 30);
    std::vector<int64_t> costs;
    for (int64_t i = 0; i < count; ++i) costs.push_back(random_layout::pick(1, sizes));
    const int64_t best = optimum(costs, ranks);
    const int64_t bound = packing_bound(counted(costs), static_cast<int64_t>(ranks), 0, kFar);
    RC_ASSERT(bound <= best);
    RC_ASSERT(packing_bound(counted(costs), static_cast<int64_t>(ranks), 0, best) <= best);
    ++tried;
    met += packing_bound(counted(costs), static_cast<int64_t>(ranks), 0, best) == best;
  }));
  INFO(met << " of " << tried);
  CHECK(met * 10 >= tried * 7);
}
