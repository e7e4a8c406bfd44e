#include <catch2/catch.hpp>

#include "unit/plan/plan_simulation.hpp"

using namespace muonrt;
using plan_case::Case;
using plan_simulation::run_step;

TEST_CASE("plan: all worked examples together share slots and still move every value",
          "[unit][plan]") {
  Case c;
  for (const vectors::Vector& v : vectors::all()) plan_case::add(c, v, 2);
  for (const int64_t budget : {1, 100, 1000, 1 << 20}) {
    for (const DType transport : {DType::kBF16, DType::kF32}) {
      c.problem.options.chunk_bytes = budget;
      c.problem.options.transport = transport;
      CHECK(run_step(c, Plan(c.problem)) == "");
    }
  }
}

TEST_CASE("plan: any mix of random layouts moves every value", "[unit][plan][property]") {
  CHECK(rc::check("gather and return", [] {
    const Case c = plan_case::random_case();
    RC_ASSERT(run_step(c, Plan(c.problem)) == "");
  }));
}

TEST_CASE("plan: any owner that the caller gives moves every value", "[unit][plan][property]") {
  CHECK(rc::check("owners", [] {
    Case c = plan_case::random_case(3);
    const Plan free(c.problem);
    for (size_t p = 0; p < c.problem.params.size(); ++p) {
      ParamSpec& spec = c.problem.params[p];
      if (spec.stack) continue;
      const auto& ranks = spec.layout.mesh().ranks();
      spec.owner = ranks[static_cast<size_t>(random_layout::pick(0, std::ssize(ranks) - 1))];
    }
    const Plan plan(c.problem);
    for (const Matrix& m : plan.matrices()) {
      const ParamSpec& spec = c.problem.params[static_cast<size_t>(m.param)];
      RC_ASSERT(spec.owner < 0 || m.owner == spec.owner);
    }
    RC_ASSERT(run_step(c, plan) == "");
  }));
}

namespace {

bool same_place(const Piece& a, const Piece& b) {
  return a.param == b.param && a.matrix == b.matrix && a.rows == b.rows && a.cols == b.cols &&
         a.local_offset == b.local_offset && a.local_ld == b.local_ld &&
         a.global_row == b.global_row && a.global_col == b.global_col &&
         a.update_scale == b.update_scale;
}

}  // namespace

TEST_CASE("plan: the way back mirrors the way there", "[unit][plan][property]") {
  CHECK(rc::check("pieces", [] {
    const Case c = plan_case::random_case();
    const Plan plan(c.problem);
    for (int r = 0; r < plan.problem().options.world; ++r) {
      for (const SlotPlan& s : plan.rank_slots(r)) {
        // of what comes back, that which went out, in the same order
        size_t next = 0;
        bool only_gathered = true;
        for (const Piece& p : s.return_pieces) {
          const Matrix& m = plan.matrices()[static_cast<size_t>(p.matrix)];
          const auto* holder = plan.holders().group(m.param, m.index).find(r);
          if (holder->replica != m.replica) {
            only_gathered = false;
            continue;
          }
          RC_ASSERT(next < s.gather_pieces.size());
          RC_ASSERT(same_place(p, s.gather_pieces[next++]));
        }
        RC_ASSERT(next == s.gather_pieces.size());
        if (!only_gathered) continue;
        RC_ASSERT(s.return_receive_bytes == s.gather_send_bytes);
        for (size_t i = 0; i < s.return_pieces.size(); ++i)
          RC_ASSERT(s.return_pieces[i].packed_offset == s.gather_pieces[i].packed_offset);
        RC_ASSERT(s.return_receives.size() == s.gather_sends.size());
        for (size_t i = 0; i < s.return_receives.size(); ++i) {
          RC_ASSERT(s.return_receives[i].peer == s.gather_sends[i].peer);
          RC_ASSERT(s.return_receives[i].offset == s.gather_sends[i].offset);
          RC_ASSERT(s.return_receives[i].bytes == s.gather_sends[i].bytes);
        }
      }
    }
  }));
}

TEST_CASE("plan: replicas share the messages that are alike", "[unit][plan]") {
  // (6, 4) over mesh (replicate 3, shard 2): three ranks want each half, packed once.
  Case c;
  plan_case::add(c, plan_case::muon("w", plan_case::mesh({3, 2}), {6, 4}, 1), {});
  c.problem.params[0].owner = 3;  // replica 1, slot 1
  const Plan plan(c.problem);
  const auto slots = plan.rank_slots(3);
  REQUIRE(slots.size() == 1);
  const SlotPlan& s = slots[0];
  REQUIRE(s.gather_receives.size() == 2);
  CHECK(s.gather_receives[0].peer == 2);
  CHECK(s.gather_receives[1].peer == 3);
  CHECK(s.gather_receives[0].bytes == 3 * 4 * 2);  // bf16
  CHECK(s.return_matrix_pieces.size() == s.gather_matrix_pieces.size());
  CHECK(s.return_send_bytes == s.gather_receive_bytes);
  REQUIRE(s.return_sends.size() == 6);
  for (const Region& region : s.return_sends)
    CHECK(region.offset == s.gather_receives[static_cast<size_t>(region.peer % 2)].offset);
  CHECK(plan.rank_slots(0)[0].gather_pieces.empty());
  CHECK(plan.rank_slots(0)[0].return_pieces.size() == 1);
}

TEST_CASE("plan: a rank alone still sends to itself", "[unit][plan]") {
  Case c;
  plan_case::add(c, plan_case::muon("w", plan_case::mesh({1}), {5, 3}), {{0, naive::iota(15)}});
  const Plan plan(c.problem);
  const auto slots = plan.rank_slots(0);
  REQUIRE(slots.size() == 1);
  REQUIRE(slots[0].gather_sends.size() == 1);
  CHECK(slots[0].gather_sends[0].peer == 0);
  CHECK(slots[0].gather_sends[0].bytes == 30);
  CHECK(slots[0].gather_send_bytes == 64);
  CHECK(run_step(c, plan) == "");
}

TEST_CASE("plan: equal shapes and methods are adjacent at their owner", "[unit][plan]") {
  Case c;
  const auto on = plan_case::mesh({1});
  int n = 0;
  for (const auto& shape :
       std::vector<naive::List>{{8, 4}, {4, 4}, {4, 8}, {5, 4}, {8, 4}, {4, 4}, {4, 8}, {5, 4}})
    plan_case::add(c, plan_case::muon("p" + std::to_string(n++), on, shape), {});
  c.problem.params[4].newton_schulz_steps = 7;
  const auto slots = Plan(c.problem).rank_slots(0);
  REQUIRE(slots.size() == 1);
  std::vector<int32_t> order;
  for (const Owned& o : slots[0].owned) order.push_back(o.matrix);
  // by short side, long side, then steps: 4x4, 4x5, 4x8 in 5 steps (either way up), 4x8 in 7
  CHECK(order == std::vector<int32_t>{1, 5, 3, 7, 0, 2, 6, 4});
}
