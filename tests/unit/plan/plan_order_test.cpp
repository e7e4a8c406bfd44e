#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "unit/plan/plan_cases.hpp"

using namespace muonrt;
using plan_case::Case;
using random_layout::pick;

namespace {

/// One exchange as a rank sees it: slot, direction (0 gather, 1 return), and whom it meets in it.
struct Meeting {
  int32_t slot, direction;
  std::set<int32_t> peers;
  std::pair<int32_t, int32_t> name() const { return {slot, direction}; }
};
using Calendar = std::vector<Meeting>;

std::set<int32_t> peers_of(const std::vector<Region>& sends, const std::vector<Region>& receives) {
  std::set<int32_t> out;
  for (const Region& r : sends) out.insert(r.peer);
  for (const Region& r : receives) out.insert(r.peer);
  return out;
}

Meeting meeting(const SlotPlan& s, int32_t direction) {
  if (direction == 0) return {s.slot, direction, peers_of(s.gather_sends, s.gather_receives)};
  if (direction == 1) return {s.slot, direction, peers_of(s.return_sends, s.return_receives)};
  return {s.slot, direction, peers_of(s.relay_sends, s.relay_receives)};
}

/// What a rank does when `window` chunks may be in flight: the gather of slot k + window - 1 comes
/// before the return of slot k. Counted over all slots of the world, or over the rank's own.
Calendar calendar(const std::vector<SlotPlan>& slots, int world_slots, int window, bool locally) {
  std::vector<const SlotPlan*> sequence;
  if (locally) {
    for (const SlotPlan& s : slots) sequence.push_back(&s);
  } else {
    sequence.assign(static_cast<size_t>(world_slots), nullptr);
    for (const SlotPlan& s : slots) sequence[static_cast<size_t>(s.slot)] = &s;
  }
  Calendar out;
  const auto n = static_cast<int>(sequence.size());
  for (int k = 0; k < n + window - 1; ++k) {
    if (k < n && sequence[static_cast<size_t>(k)] != nullptr)
      out.push_back(meeting(*sequence[static_cast<size_t>(k)], 0));
    const int back = k - window + 1;
    if (back < 0 || sequence[static_cast<size_t>(back)] == nullptr) continue;
    out.push_back(meeting(*sequence[static_cast<size_t>(back)], 1));
    out.push_back(meeting(*sequence[static_cast<size_t>(back)], 2));
  }
  return out;
}

/// Blocking exchanges: a rank leaves a meeting when everybody it meets there has arrived at it.
/// True if all come to the end.
bool all_finish(const std::vector<Calendar>& calendars) {
  std::vector<size_t> at(calendars.size(), 0);
  const auto arrived = [&](int32_t rank, const Meeting& meeting) {
    const Calendar& c = calendars[static_cast<size_t>(rank)];
    for (size_t i = 0; i <= at[static_cast<size_t>(rank)] && i < c.size(); ++i) {
      if (c[i].name() == meeting.name()) return true;
    }
    return false;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < calendars.size(); ++r) {
      if (at[r] == calendars[r].size()) continue;
      const Meeting& now = calendars[r][at[r]];
      if (!std::all_of(now.peers.begin(), now.peers.end(),
                       [&](int32_t p) { return arrived(p, now); }))
        continue;
      ++at[r];
      moved = true;
    }
  }
  for (size_t r = 0; r < calendars.size(); ++r) {
    if (at[r] < calendars[r].size()) return false;
  }
  return true;
}

bool all_finish(const Plan& plan, int window, bool locally) {
  std::vector<Calendar> calendars;
  for (const auto& slots : plan_case::all_slots(plan))
    calendars.push_back(calendar(slots, static_cast<int>(plan.slots().size()), window, locally));
  return all_finish(calendars);
}

/// Parameters on random subsets of the ranks: groups that overlap in any way.
Problem overlapping_groups() {
  Problem out;
  out.options.world = static_cast<int>(pick(2, 7));
  out.options.chunk_bytes = pick(1, 200);
  out.options.max_peers = static_cast<int>(pick(0, 2));
  const int64_t params = pick(1, 12);
  for (int64_t p = 0; p < params; ++p) {
    std::vector<int32_t> ranks;
    for (int32_t r = 0; r < out.options.world; ++r) ranks.push_back(r);
    std::mt19937 random(static_cast<unsigned>(pick(0, 1 << 20)));
    std::shuffle(ranks.begin(), ranks.end(), random);
    ranks.resize(static_cast<size_t>(pick(1, out.options.world)));
    const auto size = std::ssize(ranks);
    const auto on =
        size % 2 == 0 ? plan_case::mesh({2, size / 2}, ranks) : plan_case::mesh({1, size}, ranks);
    out.params.push_back(plan_case::muon("p" + std::to_string(p), on, {pick(1, 9), pick(1, 9)},
                                         static_cast<int>(pick(0, 1))));
  }
  return out;
}

}  // namespace

TEST_CASE("plan: any two ranks share their exchanges in the same order", "[unit][plan][property]") {
  CHECK(rc::check("random overlapping groups", [] {
    const Plan plan(overlapping_groups());
    const auto slots = plan_case::all_slots(plan);
    const int window = static_cast<int>(pick(1, 8));
    std::vector<Calendar> calendars;
    for (const auto& own : slots) {
      for (size_t i = 1; i < own.size(); ++i) RC_ASSERT(own[i - 1].slot < own[i].slot);
      calendars.push_back(calendar(own, static_cast<int>(plan.slots().size()), window, false));
    }
    for (size_t r = 0; r < calendars.size(); ++r) {
      for (size_t s = 0; s < r; ++s) {
        const auto shared = [](const Calendar& c, size_t peer) {
          std::vector<std::pair<int32_t, int32_t>> out;
          for (const Meeting& m : c) {
            if (m.peers.count(static_cast<int32_t>(peer))) out.push_back(m.name());
          }
          return out;
        };
        RC_ASSERT(shared(calendars[r], s) == shared(calendars[s], r));
      }
    }
  }));
}

TEST_CASE("plan: exchanges in world order come to an end with every window",
          "[unit][plan][property]") {
  CHECK(rc::check("random overlapping groups", [] {
    const Plan plan(overlapping_groups());
    for (int window = 1; window <= 8; ++window) RC_ASSERT(all_finish(plan, window, false));
  }));
}

TEST_CASE("plan: a window counted locally deadlocks where one counted globally does not",
          "[unit][plan]") {
  // Ranks r, s, t; groups {r, s} and {r, t}; r owns all, one matrix a slot, groups in turn.
  Problem problem;
  problem.options.world = 3;
  problem.options.chunk_bytes = 1;
  const auto a = plan_case::mesh({2}, {0, 1}), b = plan_case::mesh({2}, {0, 2});
  for (int i = 0; i < 8; ++i) {
    problem.params.push_back(plan_case::muon(std::to_string(i), i % 2 == 0 ? a : b, {4, 4}));
    problem.params.back().owner = 0;
  }
  const Plan plan(problem);
  REQUIRE(plan.slots().size() == 8);
  for (const SlotPlan& s : plan.rank_slots(1)) CHECK(s.slot % 2 == 0);
  for (const SlotPlan& s : plan.rank_slots(2)) CHECK(s.slot % 2 == 1);
  CHECK(plan.rank_slots(0).size() == 8);
  CHECK(all_finish(plan, 3, false));
  CHECK_FALSE(all_finish(plan, 3, true));
  CHECK(all_finish(plan, 1, true));  // nothing overlaps, nothing can cross
}
