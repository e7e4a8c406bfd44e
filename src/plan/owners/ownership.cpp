#include "plan/owners/ownership.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
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

/// A rank that may own the items of a set, and its replica. The smallest candidate becomes the
/// owner of the next item.
struct Candidate {
  int64_t level;  // the larger of load and SetLevels::level
  int64_t load;   // cost of the rank's items
  int64_t owned;  // cost of the set's items that the replica owns; 0 in the heap of a replica
  int32_t rank;
  size_t replica;
  auto operator<=>(const Candidate&) const = default;
};

/// The ranks that may own the items of a set: one heap for the ranks of each replica, and a heap of
/// the first entries of these heaps. Loads only grow, so it suffices to update an outdated first
/// entry before it is used.
class OwnerHeap {
 public:
  /// @param candidate  Returns the current Candidate of a rank.
  template <class Current>
  OwnerHeap(const std::vector<int32_t>& ranks, const std::vector<int32_t>& replicas,
            const Current& candidate) {
    for (size_t i = 0; i < ranks.size(); ++i) {
      const size_t replica = replicas.empty() ? 0 : static_cast<size_t>(replicas[i]);
      if (ranks_.size() <= replica) ranks_.resize(replica + 1);
      ranks_[replica].push_back(candidate(ranks[i], replica));
    }
    owned_.assign(ranks_.size(), 0);
    for (std::vector<Candidate>& heap : ranks_) {
      if (heap.empty()) continue;
      std::make_heap(heap.begin(), heap.end(), std::greater<>());
      replicas_.push_back(heap.front());
    }
    std::make_heap(replicas_.begin(), replicas_.end(), std::greater<>());
  }

  /// Chooses and returns the rank that owns the next item, whose cost is `cost`.
  template <class Current>
  int32_t take(int64_t cost, const Current& candidate) {
    update_first(replicas_, [&](const Candidate& c) {
      std::vector<Candidate>& heap = ranks_[c.replica];
      update_first(heap, [&](const Candidate& r) { return candidate(r.rank, r.replica); });
      Candidate out = heap.front();
      out.owned = owned_[c.replica];
      return out;
    });
    owned_[replicas_.front().replica] += cost;
    return replicas_.front().rank;
  }

 private:
  template <class Update>
  static void update_first(std::vector<Candidate>& heap, const Update& update) {
    for (bool current = false; !current;) {
      std::pop_heap(heap.begin(), heap.end(), std::greater<>());
      const Candidate now = update(heap.back());
      current = now == heap.back();
      heap.back() = now;
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  }

  std::vector<std::vector<Candidate>> ranks_;  // one heap for each replica
  std::vector<Candidate> replicas_;
  std::vector<int64_t> owned_;  // one entry for each replica
};

/// Assigns each item, largest first, to the least loaded rank of its set, as far as the levels of
/// smaller sets allow. If ranks are equally loaded, the replicas take turns, because an owner's
/// replica sends the gradient and receives the update before the other replicas.
/// @param levels  If null, the levels of smaller sets are ignored.
Shares largest_first(const OwnerProblem& problem, const OwnerClasses& classes, SetLevels* levels) {
  Shares out;
  out.of_rank.resize(static_cast<size_t>(problem.ranks));
  out.load.assign(static_cast<size_t>(problem.ranks), 0);
  std::vector<std::optional<OwnerHeap>> heaps(problem.sets.size());
  for (size_t c = 0; c < classes.classes.size(); ++c) {
    const OwnerClass& cls = classes.classes[c];
    const auto set = static_cast<size_t>(cls.set);
    const auto candidate = [&](int32_t rank, size_t replica) -> Candidate {
      const int64_t load = out.load[static_cast<size_t>(rank)];
      const int64_t level = levels && levels->divided(cls.set) ? levels->level(cls.set, rank) : 0;
      return {std::max(load, level), load, 0, rank, replica};
    };
    if (!heaps[set])
      heaps[set].emplace(problem.sets[set],
                         problem.replicas.empty() ? std::vector<int32_t>() : problem.replicas[set],
                         candidate);
    for (int32_t i = 0; i < cls.count(); ++i) {
      const int32_t rank = heaps[set]->take(cls.cost, candidate);
      auto& shares = out.of_rank[static_cast<size_t>(rank)];
      if (shares.empty() || shares.back().cls != static_cast<int32_t>(c))
        shares.push_back({static_cast<int32_t>(c), 0});
      ++shares.back().count;
      out.load[static_cast<size_t>(rank)] += cls.cost;
      if (levels) levels->place(cls.set, rank, cls.cost);
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
  SetLevels levels(problem, classes);
  Shares shares = largest_first(problem, classes, &levels);
  const auto largest = [](const Shares& s) {
    return std::max_element(s.load.begin(), s.load.end());
  };
  const auto busiest = [&] { return largest(shares); };
  Ownership out;
  out.lower_bound = owner_lower_bound(problem, classes, *busiest());
  rebalance(problem, classes, out.lower_bound, shares);
  if (levels.any_divided() && *busiest() > out.lower_bound) {
    // A level is a mean, so it can mislead if a smaller set covers only some ranks of the set. A
    // gain of at most 1% does not justify a worse distribution over nodes and replicas.
    Shares without = largest_first(problem, classes, nullptr);
    rebalance(problem, classes, out.lower_bound, without);
    if (*largest(without) < *busiest() - out.lower_bound / 100) shares = std::move(without);
  }
  out.owner = deal(problem, classes, shares);
  out.makespan = *busiest();
  const auto rank = static_cast<int32_t>(busiest() - shares.load.begin());
  out.lower_bound = reachable_bound(problem, classes, shares, out.lower_bound, rank);
  out.load = std::move(shares.load);
  return out;
}

}  // namespace muonrt
