#include <catch2/catch.hpp>

#include "unit/plan/plan_simulation.hpp"

using namespace muonrt;
using plan_simulation::run_step;

TEST_CASE("plan: random layouts exchange every element, directly or in two levels",
          "[unit][plan][property]") {
  CHECK(rc::check("gather and return", [] {
    for (const bool mixed : {false, true})
      RC_ASSERT(run_step(Plan(plan_case::random_problem(6, mixed))) == "");
  }));
}

TEST_CASE("plan: every element is exchanged with any owner set by the caller",
          "[unit][plan][property]") {
  CHECK(rc::check("owners", [] {
    Problem problem = plan_case::random_problem(3);
    for (ParamSpec& spec : problem.params) {
      if (spec.stack) continue;
      const auto& ranks = spec.layout.mesh().ranks();
      spec.owner = ranks[static_cast<size_t>(plan_case::pick(0, std::ssize(ranks) - 1))];
    }
    const Plan plan(problem);
    for (const Matrix& m : plan.matrices()) {
      const ParamSpec& spec = problem.params[static_cast<size_t>(m.param)];
      RC_ASSERT(spec.owner < 0 || m.owner == spec.owner);
    }
    RC_ASSERT(run_step(plan) == "");
  }));
}

TEST_CASE("plan: the simulation detects a block list that forwards the wrong region",
          "[unit][plan][relay]") {
  Problem problem;
  for (const char* name : {"a", "b", "c"})
    plan_case::add(problem, plan_case::muon(name, plan_case::mesh({2, 2, 2}), {6, 4}, 2));
  problem.options.max_peers = 3;
  const Plan plan(problem);
  REQUIRE(plan.chunks().front().relay > 0);
  auto chunks = plan_case::all_rank_chunks(plan);
  REQUIRE(run_step(plan, chunks) == "");
  // Makes rank 0 forward a different region than planned.
  auto& sends = chunks[0].front().relay_sends;
  REQUIRE(!sends.empty());
  sends.front().offset = 64;
  CHECK(run_step(plan, chunks) != "");
}

TEST_CASE("plan: replicas share equal messages", "[unit][plan]") {
  // A 6 x 4 matrix on a mesh with 3 replicas of 2 shards. Three ranks receive each half, but the
  // owner packs it only once.
  Problem problem;
  plan_case::add(problem, plan_case::muon("w", plan_case::mesh({3, 2}), {6, 4}, 1));
  problem.params[0].owner = 3;  // replica 1, shard 1
  const Plan plan(problem);
  const auto chunks = plan.rank_chunks(3);
  REQUIRE(chunks.size() == 1);
  const RankChunk& s = chunks[0];
  REQUIRE(s.gather_receives.size() == 2);
  CHECK(s.gather_receives[0].peer == 2);
  CHECK(s.gather_receives[1].peer == 3);
  CHECK(s.gather_receives[0].bytes == 3 * 4 * 2);  // bf16
  CHECK(s.return_matrix_blocks.size() == s.gather_matrix_blocks.size());
  CHECK(s.return_send_bytes == s.gather_receive_bytes);
  REQUIRE(s.return_sends.size() == 6);
  for (const Region& region : s.return_sends)
    CHECK(region.offset == s.gather_receives[static_cast<size_t>(region.peer % 2)].offset);
  CHECK(plan.rank_chunks(0)[0].gather_blocks.empty());
  CHECK(plan.rank_chunks(0)[0].return_blocks.size() == 1);
}

TEST_CASE("plan: a single rank sends to itself", "[unit][plan]") {
  Problem problem;
  plan_case::add(problem, plan_case::muon("w", plan_case::mesh({1}), {5, 3}));
  const Plan plan(problem);
  const auto chunks = plan.rank_chunks(0);
  REQUIRE(chunks.size() == 1);
  REQUIRE(chunks[0].gather_sends.size() == 1);
  CHECK(chunks[0].gather_sends[0].peer == 0);
  CHECK(chunks[0].gather_sends[0].bytes == 30);
  CHECK(chunks[0].gather_send_bytes == 64);
  CHECK(run_step(plan) == "");
}

TEST_CASE("plan: equal shapes and methods are adjacent at their owner", "[unit][plan]") {
  Problem problem;
  const auto on = plan_case::mesh({1});
  int n = 0;
  for (const auto& shape :
       std::vector<naive::List>{{8, 4}, {4, 4}, {4, 8}, {5, 4}, {8, 4}, {4, 4}, {4, 8}, {5, 4}})
    plan_case::add(problem, plan_case::muon("p" + std::to_string(n++), on, shape));
  problem.params[4].newton_schulz_steps = 7;
  const auto chunks = Plan(problem).rank_chunks(0);
  REQUIRE(chunks.size() == 1);
  std::vector<int32_t> order;
  for (const OwnedMatrix& o : chunks[0].owned) order.push_back(o.matrix);
  // The matrices are sorted by short side, long side and steps: 4x4, 4x5, 4x8 (both orientations)
  // with 5 steps, and 4x8 with 7 steps.
  CHECK(order == std::vector<int32_t>{1, 5, 3, 7, 0, 2, 6, 4});
}
