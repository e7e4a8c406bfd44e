#include "plan/owners/ownership.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "plan/owners/owner_classes.hpp"
#include "plan/owners/set_levels.hpp"

namespace muonrt {

OwnerClasses classify(const OwnerProblem& problem) {
  OwnerClasses out;
  const auto& items = problem.items;
  out.order.resize(items.size());
  std::iota(out.order.begin(), out.order.end(), 0);
  const auto item = [&](int32_t i) -> const OwnerItem& { return items[static_cast<size_t>(i)]; };
  const auto key = [&](int32_t i) { return std::tuple(-item(i).cost, item(i).set, item(i).shape); };
  std::sort(out.order.begin(), out.order.end(),
            [&](int32_t a, int32_t b) { return std::pair(key(a), a) < std::pair(key(b), b); });
  for (size_t i = 0; i < out.order.size(); ++i) {
    const auto at = static_cast<int32_t>(i);
    if (i > 0 && key(out.order[i]) == key(out.order[i - 1])) {
      out.classes.back().end = at + 1;
    } else {
      const OwnerItem& first = item(out.order[i]);
      out.classes.push_back({first.cost, first.set, first.shape, at, at + 1});
    }
  }
  const auto rank_of = [&](const OwnerClass& c) {
    return std::tuple(-c.cost, problem.sets[static_cast<size_t>(c.set)].size(),
                      out.order[static_cast<size_t>(c.begin)]);
  };
  std::sort(out.classes.begin(), out.classes.end(),
            [&](const OwnerClass& a, const OwnerClass& b) { return rank_of(a) < rank_of(b); });
  return out;
}

namespace {

/// A rank that may own the items of a set. The smallest candidate owns the next item.
struct Candidate {
  int64_t level;     // the larger of load and SetLevels::level
  int64_t load;      // cost of the rank's items
  int64_t replica;   // cost of the set's items that the rank's replica owns
  int32_t rank, at;  // sets[set][at] == rank
  auto operator<=>(const Candidate&) const = default;
};

/// Assigns each item, largest first, to the least loaded rank of its set, as far as the levels of
/// smaller sets allow. If ranks are equally loaded, replicas take turns, because the owner's
/// replica sends the gradient and receives the update before all others. Each set has a heap of its
/// ranks. Loads only grow, so if the first entry of a heap is outdated, it is updated before it is
/// used.
Shares largest_first(const OwnerProblem& problem, const OwnerClasses& classes) {
  Shares out;
  out.of_rank.resize(static_cast<size_t>(problem.ranks));
  out.load.assign(static_cast<size_t>(problem.ranks), 0);
  SetLevels levels(problem, classes);
  std::vector<std::vector<int64_t>> owned(problem.sets.size());  // by set and replica
  const auto replica_of = [&](int32_t set, int32_t at) {
    return problem.replicas.empty() || problem.replicas[static_cast<size_t>(set)].empty()
               ? 0
               : problem.replicas[static_cast<size_t>(set)][static_cast<size_t>(at)];
  };
  const auto candidate = [&](int32_t set, int32_t at) -> Candidate {
    const int32_t rank = problem.sets[static_cast<size_t>(set)][static_cast<size_t>(at)];
    const int64_t load = out.load[static_cast<size_t>(rank)];
    return {levels.divided(set) ? std::max(load, levels.level(set, rank)) : load, load,
            owned[static_cast<size_t>(set)][static_cast<size_t>(replica_of(set, at))], rank, at};
  };
  std::vector<std::vector<Candidate>> heaps(problem.sets.size());
  for (size_t c = 0; c < classes.classes.size(); ++c) {
    const OwnerClass& cls = classes.classes[c];
    std::vector<Candidate>& heap = heaps[static_cast<size_t>(cls.set)];
    if (heap.empty()) {
      const int64_t ranks = std::ssize(problem.sets[static_cast<size_t>(cls.set)]);
      int32_t replicas = 0;
      for (int32_t at = 0; at < ranks; ++at) replicas = std::max(replicas, replica_of(cls.set, at));
      owned[static_cast<size_t>(cls.set)].assign(static_cast<size_t>(replicas) + 1, 0);
      for (int32_t at = 0; at < ranks; ++at) heap.push_back(candidate(cls.set, at));
      std::make_heap(heap.begin(), heap.end(), std::greater<>());
    }
    const auto update_first = [&] {
      std::pop_heap(heap.begin(), heap.end(), std::greater<>());
      const Candidate now = candidate(cls.set, heap.back().at);
      const bool current = now == heap.back();
      heap.back() = now;
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
      return current;
    };
    for (int32_t i = 0; i < cls.count(); ++i) {
      while (!update_first()) continue;
      const auto [level, load, replica, rank, at] = heap.front();
      auto& shares = out.of_rank[static_cast<size_t>(rank)];
      if (shares.empty() || shares.back().cls != static_cast<int32_t>(c))
        shares.push_back({static_cast<int32_t>(c), 0});
      ++shares.back().count;
      out.load[static_cast<size_t>(rank)] += cls.cost;
      owned[static_cast<size_t>(cls.set)][static_cast<size_t>(replica_of(cls.set, at))] += cls.cost;
      levels.place(cls.set, rank, cls.cost);
    }
  }
  return out;
}

/// Distributes the items of each class in order, one to each rank in turn, until each rank has its
/// share.
std::vector<int32_t> deal(const OwnerProblem& problem, const OwnerClasses& classes,
                          const Shares& shares) {
  struct Room {
    int32_t rank, count;
  };
  std::vector<std::vector<Room>> rooms(classes.classes.size());
  for (size_t rank = 0; rank < shares.of_rank.size(); ++rank) {
    for (const Share& share : shares.of_rank[rank])
      rooms[static_cast<size_t>(share.cls)].push_back({static_cast<int32_t>(rank), share.count});
  }
  std::vector<int32_t> owner(problem.items.size(), -1);
  for (size_t c = 0; c < classes.classes.size(); ++c) {
    int32_t next = classes.classes[c].begin;
    while (next < classes.classes[c].end) {
      for (Room& room : rooms[c]) {
        if (room.count == 0) continue;
        --room.count;
        owner[static_cast<size_t>(classes.order[static_cast<size_t>(next++)])] = room.rank;
      }
    }
  }
  return owner;
}

}  // namespace

Ownership assign_owners(const OwnerProblem& problem) {
  const OwnerClasses classes = classify(problem);
  Shares shares = largest_first(problem, classes);
  const auto busiest = [&] { return std::max_element(shares.load.begin(), shares.load.end()); };
  Ownership out;
  out.lower_bound = owner_lower_bound(problem, classes, *busiest());
  rebalance(problem, classes, out.lower_bound, shares);
  out.owner = deal(problem, classes, shares);
  out.makespan = *busiest();
  const auto rank = static_cast<int32_t>(busiest() - shares.load.begin());
  out.lower_bound = reachable_bound(problem, classes, shares, out.lower_bound, rank);
  out.load = std::move(shares.load);
  return out;
}

}  // namespace muonrt
