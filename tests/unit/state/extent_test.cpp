#include "state/extent.hpp"

#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <random>

#include "base/error.hpp"

using namespace muonrt;

namespace {

/// Maps the index in the tensor to the index in the extent, for each element of the extent. Visits
/// the elements of the tensor one by one.
std::map<int64_t, int64_t> places(const Extent& x) {
  std::map<int64_t, int64_t> out;
  int64_t numel = 1;
  for (const int64_t n : x.shape) numel *= n;
  int64_t number = 0;  // number of elements that the runs have selected so far
  for (int64_t e = 0; e < numel; ++e) {
    bool in = true;
    int64_t rest = e;
    for (size_t d = x.shape.size(); d-- > 0; rest /= x.shape[d])
      in = in && position_of(x.runs[d], rest % x.shape[d]) >= 0;
    if (!in) continue;
    if (number >= x.begin && number < x.end) out[e] = number - x.begin;
    ++number;
  }
  return out;
}

Extent draw(std::mt19937& random, std::vector<int64_t> shape) {
  Extent out;
  out.shape = std::move(shape);
  for (const int64_t n : out.shape) {
    Runs all = whole(n);
    if (random() % 3 != 0) all = cut(all, 1 + random() % 3, 0, 1 + random() % 3, 1);
    out.runs.push_back(all);
  }
  const int64_t numel = out.product();
  out.begin = static_cast<int64_t>(random() % static_cast<uint64_t>(numel + 1));
  out.end =
      out.begin + static_cast<int64_t>(random() % static_cast<uint64_t>(numel - out.begin + 1));
  if (random() % 2) out.begin = 0, out.end = numel;
  return out;
}

}  // namespace

TEST_CASE("extent: stretches and overlaps are those of its elements one by one", "[unit][state]") {
  std::mt19937 random(20261126);
  const std::vector<std::vector<int64_t>> shapes = {{24}, {4, 6}, {2, 3, 4}, {24, 1}, {2, 12}};
  for (int i = 0; i < 400; ++i) {
    const Extent a = draw(random, shapes[random() % shapes.size()]),
                 b = draw(random, shapes[random() % shapes.size()]);
    const auto in_a = places(a), in_b = places(b);
    std::map<int64_t, int64_t> seen;
    int64_t last = -1;
    for (const Stretch& s : a.stretches()) {
      CHECK(s.count > 0);
      CHECK(s.element > last);
      last = s.element + s.count;  // adjacent elements belong to the same stretch
      for (int64_t k = 0; k < s.count; ++k) seen[s.element + k] = s.local + k;
    }
    CHECK(seen == in_a);
    std::map<int64_t, std::pair<int64_t, int64_t>> both, expected;
    for (const Overlap& o : overlaps(a, b))
      for (int64_t k = 0; k < o.count; ++k) both[o.element + k] = {o.first + k, o.second + k};
    for (const auto& [element, place] : in_a)
      if (in_b.contains(element)) expected[element] = {place, in_b.at(element)};
    CHECK(both == expected);
  }
}

// A checkpoint of a few hundred bytes can describe such an extent, but iterating over its elements
// would take an hour.
TEST_CASE("extent: a part at the end of a huge tensor is found quickly", "[unit][state]") {
  constexpr int64_t kHuge = int64_t{1} << 40;
  const Extent columns = {{kHuge, 4}, {{{0, kHuge}}, {{1, 2}}}, 0, kHuge};
  const Extent late = columns.part(kHuge - 2, kHuge);
  const auto stretches = late.stretches();
  REQUIRE(stretches.size() == 2);
  CHECK(stretches[0].element == (kHuge - 2) * 4 + 1);
  CHECK(stretches[1].element == (kHuge - 1) * 4 + 1);
  CHECK(stretches[1].local == 1);
  CHECK(columns.element_at(kHuge - 1) == (kHuge - 1) * 4 + 1);
  const auto both = overlaps(columns, late);
  REQUIRE(both.size() == 2);
  CHECK(both[1].first == kHuge - 1);
  CHECK(both[1].second == 1);
  // The second extent is flat, so its dimensions are merged.
  CHECK(overlaps(columns, whole_extent(4 * kHuge).part(4 * kHuge - 3, 4 * kHuge)).size() == 1);
  CHECK(overlaps(columns, whole_extent(4 * kHuge).part(4 * kHuge - 2, 4 * kHuge)).empty());
}

TEST_CASE("extent: an invalid extent is rejected", "[unit][state]") {
  const Extent good = {{4, 6}, {{{0, 2}, {3, 4}}, {{0, 6}}}, 2, 18};
  CHECK(problem_of(good, 24) == nullptr);
  CHECK_THAT(problem_of(good, 25), Catch::Contains("does not match the tensor"));
  const auto bad = [&](const std::function<void(Extent&)>& change) {
    Extent x = good;
    change(x);
    CHECK(problem_of(x, 24) != nullptr);
  };
  bad([](Extent& x) { x.begin = -1; });
  bad([](Extent& x) { x.end = 19; });
  bad([](Extent& x) { x.end = x.begin; });
  bad([](Extent& x) { x.runs.pop_back(); });
  bad([](Extent& x) { x.runs[0] = {}; });
  bad([](Extent& x) { x.runs[0] = {{3, 4}, {0, 2}}; });
  bad([](Extent& x) { x.runs[0] = {{0, 2}, {1, 3}}; });
  bad([](Extent& x) { x.runs[1] = {{0, 7}}; });
  bad([](Extent& x) { x.runs[1] = {{-1, 3}}; });
  bad([](Extent& x) { x.runs[1] = {{3, 3}}; });
  bad([](Extent& x) { x.shape = {int64_t{1} << 40, int64_t{1} << 40}; });
}
