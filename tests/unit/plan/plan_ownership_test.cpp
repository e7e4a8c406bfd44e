#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <stdexcept>

#include "base/text.hpp"
#include "plan/method.hpp"
#include "plan/owners/ownership.hpp"
#include "plan/owners/packing_bound.hpp"
#include "unit/plan/plan_cases.hpp"

using namespace muonrt;
using plan_case::pick;

namespace {

constexpr int64_t kFar = int64_t{1} << 40;

struct Matrices {
  int64_t rows, cols;
  int count;
  bool expert = false;
};

/// Matrix shapes of published models, from llm.c (GPT-2) and from the models' configurations.
struct Model {
  const char* name;
  std::vector<Matrices> list;
};

std::vector<Model> models() {
  return {
      {"gpt2-124m", {{2304, 768, 12}, {768, 768, 12}, {3072, 768, 12}, {768, 3072, 12}}},
      {"llama3-70b", {{8192, 8192, 160}, {1024, 8192, 160}, {28672, 8192, 160}, {8192, 28672, 80}}},
      {"qwen3-30b-a3b",
       {{4096, 2048, 48},
        {2048, 4096, 48},
        {512, 2048, 96},
        {128, 2048, 48},
        {768, 2048, 12288, true},
        {2048, 768, 6144, true}}},
      {"moonlight-16b-a3b",
       {{3072, 2048, 27},
        {2048, 2048, 27},
        {576, 2048, 27},
        {4096, 512, 27},
        {11264, 2048, 2},
        {2048, 11264, 1},
        {2816, 2048, 52},
        {2048, 2816, 26},
        {64, 2048, 26},
        {1408, 2048, 3328, true},
        {2048, 1408, 1664, true}}},
      {"deepseek-v3",
       {{1536, 7168, 61},
        {24576, 1536, 61},
        {576, 7168, 61},
        {32768, 512, 61},
        {7168, 16384, 61},
        {18432, 7168, 6},
        {7168, 18432, 3},
        {2048, 7168, 116},
        {7168, 2048, 58},
        {256, 7168, 58},
        {2048, 7168, 29696, true},
        {7168, 2048, 14848, true}}}};
}

/// Returns the owner problem of a model. Any rank may own a matrix that is not an expert. Each
/// expert belongs to one of `ep` groups of ranks, and only these ranks may own it. A group consists
/// of consecutive ranks or of every `ep`-th rank. If `ep` is 1, any rank may own any matrix.
OwnerProblem owners_of(const Model& model, int32_t ranks, int32_t ep, bool consecutive) {
  OwnerProblem out;
  out.ranks = ranks;
  const auto add = [&](int32_t first, int32_t step, int32_t end) {
    std::vector<int32_t>& set = out.sets.emplace_back();
    for (int32_t r = first; r < end; r += step) set.push_back(r);
  };
  add(0, 1, ranks);
  const int32_t size = ranks / ep;
  for (int32_t e = 0; e < ep && ep > 1; ++e)
    consecutive ? add(e * size, 1, (e + 1) * size) : add(e, ep, ranks);
  int32_t shape = 0;
  for (const Matrices& m : model.list) {
    const Method method = choose_method(FormChoice::kAuto, m.rows, m.cols, 5, {2});
    const int64_t cost = std::llround(orthogonalize_cost(method, m.rows, m.cols));
    for (int i = 0; i < m.count; ++i)
      out.items.push_back({cost, m.expert && ep > 1 ? 1 + i % ep : 0, shape});
    ++shape;
  }
  return out;
}

/// Computes the loads from the owners, and checks that every owner is allowed.
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

/// Computes the optimal makespan by exhaustive search.
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

TEST_CASE(
    "ownership: on published models the busiest rank is within 1% of the lower bound, or 2% in "
    "small groups",
    "[unit][plan]") {
  const auto check = [](const Model& model, int32_t ranks, int32_t ep, bool consecutive) {
    INFO(model.name << " on " << ranks << " ranks, ep " << ep);
    const OwnerProblem problem = owners_of(model, ranks, ep, consecutive);
    const Ownership owners = assign_owners(problem);
    const std::vector<int64_t> load = loads(problem, owners);
    CHECK(load == owners.load);
    CHECK(owners.makespan == *std::max_element(load.begin(), load.end()));
    // The bound must be at least as large as the trivial bounds, and at most as large as the
    // makespan.
    const int64_t total = std::accumulate(load.begin(), load.end(), int64_t{0});
    CHECK(owners.lower_bound >= total / ranks);
    CHECK(owners.lower_bound <= owners.makespan);
    const double most = ranks / ep <= 8 && ep > 1 ? 1.02 : 1.01;
    CHECK(static_cast<double>(owners.makespan) <= most * static_cast<double>(owners.lower_bound));
  };
  for (const Model& model : models()) {
    for (const int32_t ranks : {3, 8, 48, 64, 256, 1024}) check(model, ranks, 1, false);
    for (const bool consecutive : {false, true}) {
      for (const int32_t ep : {2, 4, 8}) check(model, 64, ep, consecutive);
      for (const int32_t ep : {8, 32}) check(model, 256, ep, consecutive);
    }
  }
}

TEST_CASE("ownership: the optimum of small problems is between bound and makespan",
          "[unit][plan][property]") {
  int found = 0, exact = 0, tried = 0;
  for (const bool restricted : {false, true}) {
    CHECK(rc::check(restricted ? "restricted" : "any rank may own", [&] {
      const OwnerProblem problem = random_problem(restricted ? 8 : 9, restricted);
      const Ownership owners = assign_owners(problem);
      loads(problem, owners);
      const int64_t best = optimum(problem);
      RC_ASSERT(owners.lower_bound <= best);
      RC_ASSERT(owners.makespan >= best);
      ++tried;
      found += owners.makespan == best;
      if (restricted) return;
      // Assigning the largest items first gives at most (4/3 - 1/(3 m)) times the optimum (Graham
      // 1969), and the improvements that follow never increase the makespan.
      const int64_t m = problem.ranks;
      RC_ASSERT(3 * m * owners.makespan <= (4 * m - 1) * best);
      std::map<int64_t, int64_t, std::greater<>> counts;
      for (const OwnerItem& item : problem.items) ++counts[item.cost];
      std::vector<CostCount> costs;
      for (const auto& [cost, count] : counts) costs.push_back({cost, count});
      RC_ASSERT(packing_bound(costs, m, 0, kFar) <= best);
      const int64_t bound = packing_bound(costs, m, 0, best);
      RC_ASSERT(bound <= best);
      exact += bound == best;
    }));
  }
  INFO(found << " optimal of " << tried << ", " << exact << " exact bounds");
  CHECK(found * 10 >= tried * 9);
  CHECK(exact * 10 >= tried * 3);
}

TEST_CASE("bounds: mean, largest item and pigeonhole, worked by hand", "[unit][plan]") {
  CHECK(packing_bound({}, 4, 0, kFar) == 0);
  CHECK(packing_bound({{10, 3}}, 4, 0, kFar) == 10);  // the largest item
  CHECK(packing_bound({{1, 10}}, 4, 0, kFar) == 3);   // 10 / 4, rounded up to whole items
  CHECK(packing_bound({{10, 5}}, 4, 0, kFar) == 20);  // five items on four ranks: one rank gets two
  CHECK(packing_bound({{10, 4}, {7, 1}}, 4, 0, kFar) == 17);  // the 7 shares a rank with a 10
  CHECK(packing_bound({{100, 9}}, 4, 0, kFar) == 300);  // nine items on four ranks: one gets three
  CHECK(packing_bound({{10, 3}}, 4, 12, kFar) == 12);   // at least the known bound
  CHECK(packing_bound({{5, 2}, {3, 2}, {2, 1}}, 1, 0, kFar) == 18);
}

TEST_CASE("bounds: bin packing proves more than mean and pigeonhole", "[unit][plan]") {
  // 48 ranks share 96 items of 35 and 64 items of 20, so the mean load is 96.7. With a load below
  // 105, a rank holds at most two 35s and one 20, one 35 and three 20s, or five 20s. If a 35 has
  // the weight 2/5 and a 20 the weight 1/5, each rank holds a weight of at most 1, but the total
  // weight is 96 * 2/5 + 64 / 5 = 51.2.
  CHECK(packing_bound({{35, 96}, {20, 64}}, 48, 0, kFar) >= 105);
  // 256 ranks share 240 items of 35 and 160 items of 20. With a load below 55, no 20 fits on a rank
  // with a 35, and the other 16 ranks hold only two 20s each.
  CHECK(packing_bound({{35, 240}, {20, 160}}, 256, 0, 55) == 55);
}

TEST_CASE("ownership: moves and swaps improve the largest-first assignment", "[unit][plan]") {
  // Assigning the largest first gives 3 + 2 + 2 and 3 + 2. Swapping a 3 and a 2 gives 6 and 6.
  const OwnerProblem problem{
      2, {{0, 1}}, {{3, 0, 0}, {3, 0, 0}, {2, 0, 0}, {2, 0, 0}, {2, 0, 0}}, {}};
  CHECK(assign_owners(problem).makespan == 6);
  CHECK(assign_owners(problem).lower_bound == 6);
}

TEST_CASE("ownership: a chain of restricted sets is levelled", "[unit][plan]") {
  // Ranks 0 and 1 may own 8 of the items, and ranks 1 and 2 the other 4. For equal loads, rank 2
  // must own all 4 of these.
  OwnerProblem problem{3, {{0, 1}, {1, 2}}, {}, {}};
  for (int i = 0; i < 8; ++i) problem.items.push_back({1, 0, 0});
  for (int i = 0; i < 4; ++i) problem.items.push_back({1, 1, 0});
  const Ownership owners = assign_owners(problem);
  CHECK(owners.makespan == 4);
  CHECK(owners.lower_bound == 4);
}

TEST_CASE("ownership: matrices for any rank are distributed over the nodes of experts",
          "[unit][plan]") {
  // Each of two nodes has eight experts of cost 5. Any rank may own the four matrices of cost 10.
  // With two of these matrices in each node, the load of a rank is 60 / 4 = 15. With all four in
  // one node, the load would be 80 / 4 = 20.
  OwnerProblem problem{8, {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3}, {4, 5, 6, 7}}, {}, {}};
  for (int i = 0; i < 4; ++i) problem.items.push_back({10, 0, 0});
  for (int i = 0; i < 16; ++i) problem.items.push_back({5, 1 + i % 2, 1});
  CHECK(assign_owners(problem).load == std::vector<int64_t>(8, 15));
  // There are three levels. A rack has two nodes, and a matrix of cost 20 belongs to the second
  // rack.
  problem.ranks = 16;
  problem.sets = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                  {0, 1, 2, 3},
                  {4, 5, 6, 7},
                  {8, 9, 10, 11},
                  {12, 13, 14, 15},
                  {8, 9, 10, 11, 12, 13, 14, 15}};
  problem.items = {{20, 5, 0}};
  for (int i = 0; i < 6; ++i) problem.items.push_back({10, 0, 1});
  for (int i = 0; i < 32; ++i) problem.items.push_back({5, 1 + i % 4, 2});
  // The total cost is 240. Four matrices of cost 10 are assigned to the first rack, and two to the
  // second one.
  const Ownership owners = assign_owners(problem);
  int64_t first = 0;
  for (int32_t rank = 0; rank < 8; ++rank) first += owners.load[static_cast<size_t>(rank)];
  CHECK(first == 120);
  CHECK(owners.makespan == 20);
}

TEST_CASE("ownership: replicas take turns if ranks are equally loaded", "[unit][plan]") {
  OwnerProblem problem{8, {{0, 1, 2, 3, 4, 5, 6, 7}}, {}, {{0, 0, 0, 0, 1, 1, 1, 1}}};
  for (int i = 0; i < 4; ++i) problem.items.push_back({10 - i, 0, i});
  CHECK(assign_owners(problem).owner == std::vector<int32_t>{0, 4, 5, 1});
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

TEST_CASE("plan: owners and chunks of a parameter do not depend on its index",
          "[unit][plan][property]") {
  CHECK(rc::check("shuffled parameters", [] {
    const Problem problem = plan_case::random_problem(8);
    Problem shuffled = problem;
    random_layout::shuffle(shuffled.params);
    using Decided = std::map<std::pair<std::string, int64_t>, std::array<int32_t, 3>>;
    const auto decided = [](const Plan& plan) {
      Decided out;
      for (const Matrix& m : plan.matrices()) {
        out[{plan.problem().params[static_cast<size_t>(m.param)].name, m.index}] = {
            m.owner, m.replica, m.chunk};
      }
      return out;
    };
    RC_ASSERT(decided(Plan(problem)) == decided(Plan(shuffled)));
  }));
}

TEST_CASE("plan: equal parameters go to the ranks in the order of their names", "[unit][plan]") {
  Problem problem;
  const auto on = plan_case::mesh({3});
  for (const char* name : {"b", "c", "a"})
    plan_case::add(problem, plan_case::muon(name, on, {6, 6}));
  const Plan plan(problem);
  CHECK(plan.matrices()[2].owner == 0);  // a
  CHECK(plan.matrices()[0].owner == 1);  // b
  CHECK(plan.matrices()[1].owner == 2);  // c
}

TEST_CASE("plan: owners are distributed over replicas", "[unit][plan]") {
  Problem problem;
  const auto on = plan_case::mesh({4, 2});
  for (int i = 0; i < 16; ++i) plan_case::add(problem, plan_case::muon(cat("p", i), on, {8, 8}, 1));
  const Plan plan(problem);
  std::vector<int> owned(8, 0);
  for (const Matrix& m : plan.matrices()) {
    ++owned[static_cast<size_t>(m.owner)];
    CHECK(m.replica == m.owner / 2);
  }
  CHECK(owned == std::vector<int>(8, 2));
  CHECK(plan.makespan() == plan.lower_bound());
}

TEST_CASE("plan: if the layout puts a matrix on one rank, that rank owns it", "[unit][plan]") {
  Problem problem;
  const auto on = plan_case::mesh({4});
  for (int i = 0; i < 8; ++i) {
    ParamSpec spec = plan_case::muon(cat("p", i), on, {6, 5});
    spec.layout = Layout::with_owner(on, {6, 5}, {0}, 3 - i % 4);
    plan_case::add(problem, spec);
  }
  const Plan plan(problem);
  for (const Matrix& m : plan.matrices()) CHECK(m.owner == 3 - m.param % 4);
}
