#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "plan/owners/owner_classes.hpp"

namespace muonrt {

namespace {

/// The maximum number of changes that the search tries. Trying all of them takes well under a
/// second. The limit is a count and not a time, so that all ranks get the same result.
constexpr int64_t kTrials = 60'000'000;

constexpr size_t kMaxItems = 4;

/// The classes of items that move from one rank to another. -1 means no item.
struct Items {
  std::array<int32_t, kMaxItems> classes = {-1, -1, -1, -1};
  static Items of(int32_t first, int32_t second = -1) { return {{first, second, -1, -1}}; }
};

/// An improving change between two ranks: items that move to rank `to` (`give`), and items that
/// move from it (`take`).
struct Change {
  int64_t larger_load;  // the larger load of the two ranks after the change
  int32_t to = -1;
  Items give = {}, take = {};
};

class Search {
 public:
  Search(const OwnerProblem& problem, const OwnerClasses& classes, Shares& shares)
      : problem_(problem), classes_(classes.classes), shares_(shares) {
    const auto ranks = static_cast<size_t>(problem.ranks);
    changed_.assign(ranks, 1);
    settled_.assign(ranks, {0, 0, 0});
    member_.resize(problem.sets.size());
    for (size_t s = 0; s < member_.size(); ++s) {
      member_[s].assign(ranks, false);
      for (const int32_t rank : problem.sets[s]) member_[s][static_cast<size_t>(rank)] = true;
    }
  }

  void run(int64_t lower_bound) {
    lower_bound_ = lower_bound;
    for (int32_t rank = 0; rank < std::ssize(shares_.load); ++rank)
      busiest_first_.emplace(-load(rank), rank);
    bool improved = true;
    while (improved && trials_ < kTrials) {
      improved = false;
      if (-busiest_first_.begin()->first <= lower_bound) return;
      for (auto at = busiest_first_.begin(); at != busiest_first_.end() && trials_ < kTrials;
           ++at) {
        improved = improve(at->second, at->first == busiest_first_.begin()->first);
        if (improved) break;  // `at` is no longer valid.
      }
    }
  }

 private:
  int64_t& load(int32_t rank) { return shares_.load[static_cast<size_t>(rank)]; }
  const OwnerClass& cls(int32_t c) const { return classes_[static_cast<size_t>(c)]; }
  std::vector<Share>& of(int32_t rank) { return shares_.of_rank[static_cast<size_t>(rank)]; }
  bool may_own(int32_t rank, int32_t c) const {
    return member_[static_cast<size_t>(cls(c).set)][static_cast<size_t>(rank)];
  }

  /// Tries the following changes between `from` and a partner, and applies the first that leaves
  /// both with less load than `from` has now:
  /// 1. The best move or swap.
  /// 2. If `from` is one of the busiest ranks: two items for one, or one for two.
  /// 3. If the load is also more than 1% above the lower bound: multiple equal items for multiple
  ///    equal ones.
  /// Skips partners that have not changed since the last failed search.
  bool improve(int32_t from, bool busiest) {
    const auto f = static_cast<size_t>(from);
    for (const size_t depth : {0, 1, 2}) {
      if (depth > 0 && !busiest) break;
      // Exchanges of multiple items make chunks uneven, which costs more time than 1% of the load.
      if (depth == 2 && load(from) <= lower_bound_ + lower_bound_ / 100) break;
      int64_t& settled = settled_[f][depth];
      const int64_t since = changed_[f] > settled ? -1 : settled;
      Change best{load(from)};
      for (const Share& share : of(from)) {
        for (const int32_t to : problem_.sets[static_cast<size_t>(cls(share.cls).set)]) {
          ++trials_;
          if (to == from || load(to) >= load(from) || changed_[static_cast<size_t>(to)] <= since)
            continue;
          if (trials_ >= kTrials) break;
          if (depth == 0) consider(from, to, share.cls, best);
          if (depth == 1) consider_pairs(from, to, share, best);
          if (depth == 2) consider_several(from, to, share, best);
        }
      }
      if (best.to >= 0) {
        apply(from, best);
        return true;
      }
      settled = now_;
    }
    return false;
  }

  void offer(int32_t from, const Change& change, Change& best) {
    int64_t less = 0;
    for (const int32_t c : change.give.classes) less += c < 0 ? 0 : cls(c).cost;
    for (const int32_t c : change.take.classes) less -= c < 0 ? 0 : cls(c).cost;
    if (less <= 0) return;
    const int64_t larger = std::max(load(from) - less, load(change.to) + less);
    if (larger >= best.larger_load) return;
    best = change;
    best.larger_load = larger;
  }

  void consider(int32_t from, int32_t to, int32_t give, Change& best) {
    offer(from, {0, to, Items::of(give), {}}, best);
    for (const Share& back : of(to)) {
      ++trials_;
      if (may_own(from, back.cls)) offer(from, {0, to, Items::of(give), Items::of(back.cls)}, best);
    }
  }

  void consider_pairs(int32_t from, int32_t to, const Share& give, Change& best) {
    trials_ += std::ssize(of(to));
    for (const Share& back : of(to)) {
      if (!may_own(from, back.cls)) continue;
      for_second(to, from, back, [&](int32_t second) {
        offer(from, {0, to, Items::of(give.cls), Items::of(back.cls, second)}, best);
      });
      for_second(from, to, give, [&](int32_t second) {
        offer(from, {0, to, Items::of(give.cls, second), Items::of(back.cls)}, best);
      });
    }
  }

  void consider_several(int32_t from, int32_t to, const Share& give, Change& best) {
    trials_ += std::ssize(of(to));
    for (const Share& back : of(to)) {
      if (!may_own(from, back.cls)) continue;
      Items given;
      for (size_t g = 0; g < kMaxItems && std::cmp_less(g, give.count); ++g) {
        given.classes[g] = give.cls;
        Items taken;
        for (size_t t = 0; t < kMaxItems && std::cmp_less(t, back.count); ++t) {
          taken.classes[t] = back.cls;
          offer(from, {0, to, given, taken}, best);
        }
      }
    }
  }

  /// Calls `use` with the class of each item that `giver` could move to `taker` together with an
  /// item of class `first`. Omits classes before `first`, so each pair is tried only once.
  template <class Use>
  void for_second(int32_t giver, int32_t taker, const Share& first, const Use& use) {
    trials_ += std::ssize(of(giver));
    for (const Share& other : of(giver)) {
      if (other.cls < first.cls || (other.cls == first.cls && other.count < 2)) continue;
      if (may_own(taker, other.cls)) use(other.cls);
    }
  }

  void apply(int32_t from, const Change& change) {
    for (const int32_t rank : {from, change.to}) busiest_first_.erase({-load(rank), rank});
    for (const int32_t c : change.give.classes) hand_over(from, change.to, c);
    for (const int32_t c : change.take.classes) hand_over(change.to, from, c);
    for (const int32_t rank : {from, change.to}) busiest_first_.emplace(-load(rank), rank);
    ++now_;
    changed_[static_cast<size_t>(from)] = changed_[static_cast<size_t>(change.to)] = now_;
  }

  void hand_over(int32_t from, int32_t to, int32_t c) {
    if (c < 0) return;
    const auto below = [](const Share& share, int32_t key) { return share.cls < key; };
    auto& giver = of(from);
    const auto at = std::lower_bound(giver.begin(), giver.end(), c, below);
    if (--at->count == 0) giver.erase(at);
    auto& taker = of(to);
    const auto holder = std::lower_bound(taker.begin(), taker.end(), c, below);
    if (holder != taker.end() && holder->cls == c) {
      ++holder->count;
    } else {
      taker.insert(holder, {c, 1});
    }
    load(from) -= cls(c).cost;
    load(to) += cls(c).cost;
  }

  const OwnerProblem& problem_;
  const std::vector<OwnerClass>& classes_;
  Shares& shares_;
  std::set<std::pair<int64_t, int32_t>> busiest_first_;  // pairs (negative load, rank)
  std::vector<std::vector<bool>> member_;                // indexed by [set][rank]
  std::vector<int64_t> changed_;                         // for each rank, when it last changed
  // For each rank and depth, when the last failed search took place.
  std::vector<std::array<int64_t, 3>> settled_;
  int64_t now_ = 1, trials_ = 0, lower_bound_ = 0;
};

}  // namespace

void rebalance(const OwnerProblem& problem, const OwnerClasses& classes, int64_t lower_bound,
               Shares& shares) {
  Search(problem, classes, shares).run(lower_bound);
}

}  // namespace muonrt
