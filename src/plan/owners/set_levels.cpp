#include "plan/owners/set_levels.hpp"

#include <algorithm>

#include "base/checked.hpp"

namespace muonrt {

namespace {

/// The maximum number of level updates for one set. Each item that many ranks may own can make the
/// levels of all ranks of a smaller set outdated. A set that would need more updates is treated as
/// not divided.
constexpr int64_t kUpdates = 4'000'000;

/// Returns true if `set` contains all ranks of `part`. Both must be in ascending order.
bool contains(const std::vector<int32_t>& set, const std::vector<int32_t>& part) {
  if (part.front() < set.front() || part.back() > set.back()) return false;
  if (part.size() > set.size() / 16)
    return std::includes(set.begin(), set.end(), part.begin(), part.end());
  return std::all_of(part.begin(), part.end(), [&](int32_t rank) {
    return std::binary_search(set.begin(), set.end(), rank);
  });
}

}  // namespace

SetLevels::SetLevels(const OwnerProblem& problem, const OwnerClasses& classes)
    : loads_(problem.sets.size(), 0),
      divided_(problem.sets.size(), false),
      outer_(problem.sets.size()),
      sets_of_(static_cast<size_t>(problem.ranks)) {
  std::vector<int64_t> items(problem.sets.size(), 0), own(problem.sets.size(), 0);
  for (const OwnerClass& c : classes.classes) {
    items[static_cast<size_t>(c.set)] += c.count();
    own[static_cast<size_t>(c.set)] += c.cost * c.count();
  }
  for (size_t s = 0; s < problem.sets.size(); ++s) {
    sizes_.push_back(std::ssize(problem.sets[s]));
    if (items[s] == 0) continue;
    for (const int32_t rank : problem.sets[s])
      sets_of_[static_cast<size_t>(rank)].push_back(static_cast<int32_t>(s));
  }
  std::vector<int64_t> largest_part(problem.sets.size(), 0);
  for (size_t s = 0; s < problem.sets.size(); ++s) {
    if (items[s] == 0) continue;
    loads_[s] += own[s];
    const std::vector<int32_t>& ranks = problem.sets[s];
    for (const int32_t other : sets_of_[static_cast<size_t>(ranks.front())]) {
      const auto o = static_cast<size_t>(other);
      const std::vector<int32_t>& larger = problem.sets[o];
      if (o == s || sizes_[o] < sizes_[s] || !contains(larger, ranks)) continue;
      outer_[s].push_back(other);
      loads_[o] += own[s];
      if (sizes_[o] > sizes_[s]) largest_part[o] = std::max(largest_part[o], sizes_[s]);
    }
  }
  int64_t outside = 0;  // number of items whose sets contain smaller sets
  for (size_t s = 0; s < problem.sets.size(); ++s) outside += largest_part[s] > 0 ? items[s] : 0;
  for (size_t s = 0; s < problem.sets.size(); ++s)
    divided_[s] = largest_part[s] > 0 && outside <= kUpdates / largest_part[s];
}

bool SetLevels::is_part(int32_t part, int32_t set) const {
  const std::vector<int32_t>& outer = outer_[static_cast<size_t>(part)];
  return std::binary_search(outer.begin(), outer.end(), set);
}

int64_t SetLevels::level(int32_t set, int32_t rank) const {
  int64_t out = 0;
  for (const int32_t s : sets_of_[static_cast<size_t>(rank)]) {
    const auto at = static_cast<size_t>(s);
    if (is_part(s, set)) out = std::max(out, ceil_div(loads_[at], sizes_[at]));
  }
  return out;
}

void SetLevels::place(int32_t set, int32_t rank, int64_t cost) {
  for (const int32_t s : sets_of_[static_cast<size_t>(rank)])
    if (s != set && !is_part(set, s)) loads_[static_cast<size_t>(s)] += cost;
}

}  // namespace muonrt
