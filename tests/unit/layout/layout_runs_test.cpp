#include <catch2/catch.hpp>
#include <limits>

#include "layout/runs.hpp"
#include "unit/layout/layout_naive.hpp"

using namespace muonrt;
using naive::List;

TEST_CASE("runs: every small cut agrees with cutting an explicit list", "[unit][layout]") {
  const Runs lists[] = {whole(0), whole(1), whole(7), whole(12), {{1, 3}, {5, 6}, {8, 13}}};
  for (const Runs& list : lists) {
    const List explicit_list = naive::expand(list);
    for (int64_t f = 1; f <= 14; ++f) {
      for (int64_t n = 1; n <= 5; ++n) {
        for (int64_t unit = 1; unit <= 4; ++unit) {
          for (int64_t i = 0; i < n; ++i) {
            INFO(to_text(list) << " f " << f << " n " << n << " unit " << unit << " part " << i);
            const List want = naive::cut(explicit_list, f, n, i, unit);
            const Runs got = cut(list, n, i, f, unit);
            REQUIRE(naive::expand(got) == want);
            REQUIRE(cut_length(length(list), n, i, f, unit) == std::ssize(want));
            for (size_t p = 0; p < want.size(); ++p) {
              const auto at = position_of(list, want[p]);
              const CutSpot spot = locate_in_cut(length(list), at, n, f, unit);
              REQUIRE(spot.part == i);
              REQUIRE(spot.position == static_cast<int64_t>(p));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("runs: adjacent runs are merged, so a contiguous part of one run is one run",
          "[unit][layout]") {
  for (int64_t i = 0; i < 7; ++i) CHECK(cut(whole(100), 7, i, 1, 1).size() == 1);
  CHECK(cut(whole(12), 1, 0, 5, 1) == whole(12));
  // The only block is in part 0, so part 0 gets everything.
  CHECK(cut(whole(6), 3, 0, 9, 1) == whole(6));
  CHECK(cut(whole(6), 3, 1, 9, 1).empty());
}

TEST_CASE("runs: sizes near 2^63 are cut without overflow", "[unit][layout]") {
  const int64_t n = std::numeric_limits<int64_t>::max();
  const Runs last = cut(whole(n), 1 << 20, (1 << 20) - 1, 1, 1);
  REQUIRE(last.size() == 1);
  CHECK(last[0].end == n);
  CHECK(last[0].begin == ((int64_t{1} << 20) - 1) * (int64_t{1} << 43));
  CHECK(length(cut(whole(n), 3, 0, 1, n - 1)) == n - 1);
  CHECK(length(cut(whole(n), 3, 1, 1, n - 1)) == 1);
  CHECK(length(cut(whole(n), 3, 2, 1, n - 1)) == 0);
  CHECK(cut_length(n, 2, 1, 1, 1) == n / 2);
  CHECK(locate_in_cut(n, n - 1, 2, 1, 1).position == n / 2 - 1);
}

TEST_CASE("runs: a cut costs runs, not indices", "[unit][layout]") {
  const int64_t n = int64_t{1} << 60;  // an explicit list of this length could not be stored
  const Runs list = cut(cut(whole(n), 3, 1, 7, 1), 5, 2, 11, 4096);
  CHECK(list.size() <= 7 * 11);
  CHECK(length(list) == cut_length(cut_length(n, 3, 1, 7, 1), 5, 2, 11, 4096));
}

TEST_CASE("runs: invalid cuts are rejected with the value", "[unit][layout]") {
  CHECK_THROWS_WITH(cut(whole(4), 0, 0, 1, 1), Catch::Contains("parts is 0"));
  CHECK_THROWS_WITH(cut(whole(4), 2, 2, 1, 1), Catch::Contains("part 2 of 2"));
  CHECK_THROWS_WITH(cut(whole(4), 2, -1, 1, 1), Catch::Contains("part -1 of 2"));
  CHECK_THROWS_WITH(cut(whole(4), 2, 0, 0, 1), Catch::Contains("split factor is 0"));
  CHECK_THROWS_WITH(cut(whole(4), 2, 0, 1, 0), Catch::Contains("unit is 0"));
  CHECK_THROWS_WITH(locate_in_cut(4, 4, 2, 1, 1), Catch::Contains("position 4"));
}

TEST_CASE("runs: slice, intersect and position agree with explicit lists", "[unit][layout]") {
  const Runs a = {{1, 4}, {6, 7}, {9, 14}}, b = {{0, 2}, {3, 7}, {12, 20}};
  CHECK(slice(a, 0, 100) == a);
  CHECK(slice(a, 2, 5) == Runs{{3, 4}, {6, 7}, {9, 10}});
  CHECK(slice(a, 3, 3).empty());
  CHECK(slice(a, 4, 9) == Runs{{9, 14}});
  CHECK(intersect(a, b) == Runs{{1, 2}, {3, 4}, {6, 7}, {12, 14}});
  CHECK(intersect(a, {}).empty());
  const List list = naive::expand(a);
  for (int64_t i = -1; i < 16; ++i) {
    const auto at = std::find(list.begin(), list.end(), i);
    CHECK(position_of(a, i) == (at == list.end() ? -1 : at - list.begin()));
  }
  CHECK(to_text(a) == "[1, 4) [6, 7) [9, 14)");
  CHECK(to_text(Runs{}) == "-");
}

TEST_CASE("runs: flatten lists the pairs of two dims in row-major order", "[unit][layout]") {
  const Runs outer = {{0, 2}, {3, 4}}, inner = {{1, 3}};
  CHECK(flatten(outer, inner, 5) == Runs{{1, 3}, {6, 8}, {16, 18}});
  CHECK(flatten(outer, whole(5), 5) == Runs{{0, 10}, {15, 20}});
  CHECK(flatten(outer, {}, 5).empty());
  CHECK(flatten({{0, 2}}, {{0, 1}, {4, 5}}, 5) == Runs{{0, 1}, {4, 6}, {9, 10}});
}
