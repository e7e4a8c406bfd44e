#include <rapidcheck.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <stdexcept>

#include "plan/method.hpp"
#include "plan/owners/ownership.hpp"
#include "unit/plan/plan_cases.hpp"
#include "unit/plan/plan_models.hpp"

using namespace muonrt;
using random_layout::pick;

namespace {

std::vector<int32_t> ranks_from(int32_t first, int32_t count, int32_t step = 1) {
  std::vector<int32_t> out;
  for (int32_t i = 0; i < count; ++i) out.push_back(first + i * step);
  return out;
}

int64_t flops(int64_t rows, int64_t cols) {
  const Method method = choose_method(FormChoice::kAuto, rows, cols, 5, {2});
  return std::llround(orthogonalize_cost(method, rows, cols));
}

/// Loads recomputed from the owners; also checks that every owner is allowed.
std::vector<int64_t> loads(const OwnerProblem& problem, const Ownership& owners) {
  std::vector<int64_t> out(static_cast<size_t>(problem.ranks), 0);
  for (size_t i = 0; i < problem.items.size(); ++i) {
    const auto& set = problem.sets[static_cast<size_t>(problem.items[i].set)];
    if (!std::binary_search(set.begin(), set.end(), owners.owner[i]))
      throw std::runtime_error("an owner that is not allowed");
    out[static_cast<size_t>(owners.owner[i])] += problem.items[i].cost;
  }
  return out;
}

/// The best makespan there is, by trying everything.
int64_t optimum(const OwnerProblem& problem) {
  std::vector<int64_t> load(static_cast<size_t>(problem.ranks), 0);
  int64_t best = INT64_MAX;
  const std::function<void(size_t)> place = [&](size_t i) {
    if (i == problem.items.size()) {
      best = std::min(best, *std::max_element(load.begin(), load.end()));
      return;
    }
    for (const int32_t r : problem.sets[static_cast<size_t>(problem.items[i].set)]) {
      auto& there = load[static_cast<size_t>(r)];
      there += problem.items[i].cost;
      if (there < best) place(i + 1);
      there -= problem.items[i].cost;
    }
  };
  place(0);
  return best;
}

OwnerProblem random_problem(int64_t most_items, bool restricted) {
  OwnerProblem out;
  out.ranks = static_cast<int32_t>(pick(1, 4));
  const int64_t sets = restricted ? pick(1, 4) : 1;
  for (int64_t s = 0; s < sets; ++s) {
    std::vector<int32_t> set;
    for (int32_t r = 0; r < out.ranks; ++r) {
      if (!restricted || pick(0, 1)) set.push_back(r);
    }
    if (set.empty()) set.push_back(static_cast<int32_t>(pick(0, out.ranks - 1)));
    out.sets.push_back(set);
  }
  const int64_t items = pick(1, most_items), sizes = pick(1, 12);
  for (int64_t i = 0; i < items; ++i)
    out.items.push_back({pick(1, sizes) * pick(1, 9), static_cast<int32_t>(pick(0, sets - 1)), 0});
  return out;
}

}  // namespace

TEST_CASE("ownership: on published models the busiest rank is within 2% of the lower bound",
          "[unit][plan]") {
  for (const plan_models::Model& model : plan_models::all()) {
    for (const int32_t ranks : {3, 8, 48, 64, 256, 1024}) {
      OwnerProblem problem{ranks, {ranks_from(0, ranks)}, {}};
      int32_t shape = 0;
      for (const auto& m : model.list) {
        for (int i = 0; i < m.count; ++i)
          problem.items.push_back({flops(m.rows, m.cols), 0, shape});
        ++shape;
      }
      const Ownership owners = assign_owners(problem);
      INFO(model.name << " on " << ranks << " ranks");
      const std::vector<int64_t> load = loads(problem, owners);
      CHECK(load == owners.load);
      CHECK(owners.makespan == *std::max_element(load.begin(), load.end()));
      // the bound is no smaller than what anybody can see, nor larger than what was reached
      const int64_t total = std::accumulate(load.begin(), load.end(), int64_t{0});
      CHECK(owners.lower_bound >= total / ranks);
      CHECK(owners.lower_bound <= owners.makespan);
      CHECK(static_cast<double>(owners.makespan) <= 1.02 * static_cast<double>(owners.lower_bound));
    }
  }
}

TEST_CASE("ownership: experts that only some ranks hold are within 2% of the bound, too",
          "[unit][plan]") {
  for (const plan_models::Model& model : plan_models::all()) {
    for (const int32_t ep : {2, 4, 8}) {
      const int32_t ranks = 64;
      OwnerProblem problem{ranks, {ranks_from(0, ranks)}, {}};
      for (int32_t e = 0; e < ep; ++e) problem.sets.push_back(ranks_from(e, ranks / ep, ep));
      int32_t shape = 0;
      for (const auto& m : model.list) {
        for (int i = 0; i < m.count; ++i)
          problem.items.push_back({flops(m.rows, m.cols), m.expert ? 1 + i % ep : 0, shape});
        ++shape;
      }
      const Ownership owners = assign_owners(problem);
      INFO(model.name << ", ep " << ep);
      CHECK(loads(problem, owners) == owners.load);
      CHECK(static_cast<double>(owners.makespan) <= 1.02 * static_cast<double>(owners.lower_bound));
    }
  }
}

TEST_CASE("ownership: the optimum of small problems lies between bound and makespan",
          "[unit][plan][property]") {
  int found = 0, tried = 0;
  CHECK(rc::check("any rank may own", [&] {
    const OwnerProblem problem = random_problem(9, false);
    const Ownership owners = assign_owners(problem);
    const int64_t best = optimum(problem);
    RC_ASSERT(owners.lower_bound <= best);
    RC_ASSERT(owners.makespan >= best);
    // Graham 1969: largest first reaches 4/3 - 1/(3 m) of the optimum; improving it loses nothing
    const int64_t m = problem.ranks;
    RC_ASSERT(3 * m * owners.makespan <= (4 * m - 1) * best);
    ++tried;
    found += owners.makespan == best;
  }));
  CHECK(rc::check("restricted", [&] {
    const OwnerProblem problem = random_problem(8, true);
    const Ownership owners = assign_owners(problem);
    loads(problem, owners);
    const int64_t best = optimum(problem);
    RC_ASSERT(owners.lower_bound <= best);
    RC_ASSERT(owners.makespan >= best);
    ++tried;
    found += owners.makespan == best;
  }));
  INFO(found << " optimal of " << tried);
  CHECK(found * 10 >= tried * 9);
}

TEST_CASE("ownership: moves and swaps repair what largest first leaves", "[unit][plan]") {
  // Largest first: 3 + 2 + 2 beside 3 + 2. One swap of 3 and 2 gives 6 and 6.
  const OwnerProblem problem{2, {{0, 1}}, {{3, 0, 0}, {3, 0, 0}, {2, 0, 0}, {2, 0, 0}, {2, 0, 0}}};
  CHECK(assign_owners(problem).makespan == 6);
  CHECK(assign_owners(problem).lower_bound == 6);
}

TEST_CASE("ownership: a chain of restricted sets is levelled", "[unit][plan]") {
  // 8 items on ranks {0, 1}, 4 on {1, 2}: rank 1 must leave all of the latter to rank 2.
  OwnerProblem problem{3, {{0, 1}, {1, 2}}, {}};
  for (int i = 0; i < 8; ++i) problem.items.push_back({1, 0, 0});
  for (int i = 0; i < 4; ++i) problem.items.push_back({1, 1, 0});
  const Ownership owners = assign_owners(problem);
  CHECK(owners.makespan == 4);
  CHECK(owners.lower_bound == 4);
}

TEST_CASE("ownership: the numbering of sets does not matter", "[unit][plan][property]") {
  CHECK(rc::check("reversed sets", [] {
    const OwnerProblem problem = random_problem(40, true);
    OwnerProblem other = problem;
    std::reverse(other.sets.begin(), other.sets.end());
    const auto last = static_cast<int32_t>(other.sets.size()) - 1;
    for (OwnerItem& item : other.items) item.set = last - item.set;
    RC_ASSERT(assign_owners(problem).owner == assign_owners(other).owner);
  }));
}

TEST_CASE("plan: owners and slots of a parameter do not depend on its place in the list",
          "[unit][plan][property]") {
  CHECK(rc::check("shuffled parameters", [] {
    const plan_case::Case c = plan_case::random_case(8);
    Problem shuffled = c.problem;
    std::mt19937 random(static_cast<unsigned>(pick(0, 1 << 20)));
    std::shuffle(shuffled.params.begin(), shuffled.params.end(), random);
    using Decided = std::map<std::pair<std::string, int64_t>, std::array<int32_t, 3>>;
    const auto decided = [](const Plan& plan) {
      Decided out;
      for (const Matrix& m : plan.matrices()) {
        out[{plan.problem().params[static_cast<size_t>(m.param)].name, m.index}] = {
            m.owner, m.replica, m.slot};
      }
      return out;
    };
    RC_ASSERT(decided(Plan(c.problem)) == decided(Plan(shuffled)));
  }));
}

TEST_CASE("plan: equal parameters go to the ranks in the order of their names", "[unit][plan]") {
  plan_case::Case c;
  const auto on = plan_case::mesh({3});
  for (const char* name : {"b", "c", "a"}) plan_case::add(c, plan_case::muon(name, on, {6, 6}), {});
  const Plan plan(c.problem);
  CHECK(plan.matrices()[2].owner == 0);  // a
  CHECK(plan.matrices()[0].owner == 1);  // b
  CHECK(plan.matrices()[1].owner == 2);  // c
}

TEST_CASE("plan: owners are spread over replicas, and load follows", "[unit][plan]") {
  plan_case::Case c;
  const auto on = plan_case::mesh({4, 2});
  for (int i = 0; i < 16; ++i)
    plan_case::add(c, plan_case::muon("p" + std::to_string(i), on, {8, 8}, 1), {});
  const Plan plan(c.problem);
  std::vector<int> owned(8, 0);
  for (const Matrix& m : plan.matrices()) {
    ++owned[static_cast<size_t>(m.owner)];
    CHECK(m.replica == m.owner / 2);
  }
  CHECK(owned == std::vector<int>(8, 2));
  CHECK(plan.makespan() == plan.lower_bound());
}

TEST_CASE("plan: a layout that puts a matrix on one rank keeps the work there", "[unit][plan]") {
  plan_case::Case c;
  const auto on = plan_case::mesh({4});
  for (int i = 0; i < 8; ++i) {
    ParamSpec spec = plan_case::muon("p" + std::to_string(i), on, {6, 5});
    spec.layout = Layout::with_owner(on, {6, 5}, {0}, 3 - i % 4);
    plan_case::add(c, spec, {});
  }
  const Plan plan(c.problem);
  for (const Matrix& m : plan.matrices()) CHECK(m.owner == 3 - m.param % 4);
}
