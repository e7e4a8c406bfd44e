#include <algorithm>

#include "base/checked.hpp"
#include "plan/owners/owner_classes.hpp"
#include "plan/owners/packing_bound.hpp"

namespace muonrt {

namespace {

/// The maximum work for comparing all pairs of sets of ranks, in 64-bit words. Above this limit,
/// the bound of a set includes only the set's own items and not those of its subsets, which makes
/// the bound weaker but keeps it valid.
constexpr int64_t kCompareWords = 200'000'000;

using Bits = std::vector<uint64_t>;

Bits bits_of(const std::vector<int32_t>& ranks, int32_t world) {
  Bits out(static_cast<size_t>(ceil_div(world, 64)));
  for (const int32_t r : ranks) out[static_cast<size_t>(r) / 64] |= uint64_t{1} << (r % 64);
  return out;
}

bool inside(const Bits& a, const Bits& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] & ~b[i]) return false;
  }
  return true;
}

/// Adds items of a class to a list. Classes must be added in ascending order, so the costs in the
/// list descend.
void add(const OwnerClass& cls, int64_t count, std::vector<CostCount>& items) {
  if (items.empty() || items.back().cost != cls.cost) items.push_back({cls.cost, 0});
  items.back().count += count;
}

}  // namespace

int64_t owner_lower_bound(const OwnerProblem& problem, const OwnerClasses& classes,
                          int64_t reached) {
  if (classes.classes.empty()) return 0;
  std::vector<CostCount> all;
  std::vector<std::vector<int32_t>> classes_of(problem.sets.size());
  std::vector<Bits> bits;
  for (const auto& set : problem.sets) bits.push_back(bits_of(set, problem.ranks));
  Bits usable = bits_of({}, problem.ranks);
  for (size_t c = 0; c < classes.classes.size(); ++c) {
    const OwnerClass& cls = classes.classes[c];
    const auto set = static_cast<size_t>(cls.set);
    add(cls, cls.count(), all);
    classes_of[set].push_back(static_cast<int32_t>(c));
    for (size_t w = 0; w < usable.size(); ++w) usable[w] |= bits[set][w];
  }
  int64_t ranks = 0;
  for (const uint64_t word : usable) ranks += __builtin_popcountll(word);
  int64_t best = packing_bound(all, ranks, 0, reached);

  const int64_t sets = std::ssize(problem.sets);
  const bool compare = sets <= kCompareWords / sets / std::ssize(usable);
  std::vector<int32_t> chosen;
  std::vector<CostCount> items;
  for (size_t h = 0; h < bits.size(); ++h) {
    if (classes_of[h].empty()) continue;
    chosen.clear();
    for (size_t s = compare ? 0 : h; s < (compare ? bits.size() : h + 1); ++s) {
      if (inside(bits[s], bits[h]))
        chosen.insert(chosen.end(), classes_of[s].begin(), classes_of[s].end());
    }
    std::sort(chosen.begin(), chosen.end());
    items.clear();
    for (const int32_t c : chosen) {
      const OwnerClass& cls = classes.classes[static_cast<size_t>(c)];
      add(cls, cls.count(), items);
    }
    best = packing_bound(items, std::ssize(problem.sets[h]), best, reached);
  }
  return best;
}

int64_t reachable_bound(const OwnerProblem& problem, const OwnerClasses& classes,
                        const Shares& shares, int64_t known, int32_t rank) {
  std::vector<char> seen(static_cast<size_t>(problem.ranks), 0);
  std::vector<char> set_seen(problem.sets.size(), 0);
  std::vector<int32_t> reached = {rank};
  seen[static_cast<size_t>(rank)] = 1;
  std::vector<int64_t> held(classes.classes.size(), 0);
  for (size_t i = 0; i < reached.size(); ++i) {
    for (const Share& share : shares.of_rank[static_cast<size_t>(reached[i])]) {
      held[static_cast<size_t>(share.cls)] += share.count;
      const auto set = static_cast<size_t>(classes.classes[static_cast<size_t>(share.cls)].set);
      if (set_seen[set]) continue;
      set_seen[set] = 1;
      for (const int32_t r : problem.sets[set]) {
        if (seen[static_cast<size_t>(r)]) continue;
        seen[static_cast<size_t>(r)] = 1;
        reached.push_back(r);
      }
    }
  }
  std::vector<CostCount> items;
  for (size_t c = 0; c < held.size(); ++c) {
    if (held[c] > 0) add(classes.classes[c], held[c], items);
  }
  return packing_bound(items, std::ssize(reached), known, shares.load[static_cast<size_t>(rank)]);
}

}  // namespace muonrt
