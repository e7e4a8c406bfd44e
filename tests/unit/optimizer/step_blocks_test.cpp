#include <catch2/catch.hpp>

#include "support/attempts.hpp"
#include "support/caller_functions.hpp"
#include "support/rank_check.hpp"

// Block-periodic orthogonalization over ranks; step_textbook_test.cpp compares it with the float64
// reference implementation.

using namespace muonrt;

namespace {

constexpr int kPeriod = 3;

world::Case make_case() {
  world::Case c = world::on_mesh({2, 2});
  c.settings.transport = DType::kF32;
  c.settings.groups = world::default_groups();
  c.settings.groups[0].blocks = {kPeriod, 2, 3, 0.25};
  const Placement r{PlacementKind::kReplicate, 0, 1}, s0{PlacementKind::kShard, 0, 1},
      s1{PlacementKind::kShard, 1, 1};
  c.params = {world::matrix("wide", {25, 61}, {r, s0}), world::matrix("tall", {61, 24}, {s0, s1}),
              world::matrix("row", {1, 32}, {s0, s1})};
  return c;
}

}  // namespace

TEST_CASE("step: blocks that are shards move nothing between ranks", "[unit][optimizer]") {
  world::Case c = world::on_mesh({2});
  c.steps = 2;
  c.settings.groups = world::default_groups();
  c.settings.groups[0].blocks = {2, 2, 1, 1.0};
  c.params = {world::matrix("w", {16, 24}, {{PlacementKind::kShard, 0, 1}})};
  world::on_ranks(2, [&](Comm& comm) {
    world::Rank rank(c, comm);
    StepReport whole, blocks;
    RANK_CHECK(rank.step(0, whole) == Status::kOk);
    RANK_CHECK(rank.step(1, blocks) == Status::kOk);
    RANK_CHECK(blocks.planned == 2);
    // The vote remains; half a matrix in bf16 goes there, or comes back.
    RANK_CHECK(blocks.bytes_sent + 8 * 24 * 2 <= whole.bytes_sent);
    const std::string text = rank.optimizer().describe(false);
    RANK_CHECK(text.find("those between take blocks") != std::string::npos);
    RANK_CHECK(rank.optimizer().describe(true).find("\"block_plan\":{") != std::string::npos);
  });
}

TEST_CASE("step: step numbers that differ between ranks under blocks are a mismatch, not a hang",
          "[unit][optimizer]") {
  const auto ends = world::on_each(make_case(), [](world::Rank& rank, Comm& comm) {
    StepReport report;
    RANK_CHECK(rank.step(0, report) == Status::kOk);
    // Rank 2 takes the coming step for a whole one.
    if (comm.rank() == 2) rank.optimizer().set_steps(2 * kPeriod);
    const world::Ended end = world::attempt(rank, 1);
    rank.optimizer().set_steps(1);
    RANK_CHECK(rank.step(1, report) == Status::kOk && report.step == 2);
    return end;
  });
  for (const world::Ended& end : ends) {
    CHECK(end.status == Status::kMismatch);
    CHECK(end.unchanged);
    for (const char* words : {"committed steps is 6 on rank 2", "1 on rank 0", "block_period 3"})
      CHECK_THAT(end.message, Catch::Contains(words));
  }
}

TEST_CASE("step: blocks that the caller's functions bring to an owner have the same bits",
          "[bits][functions]") {
  world::Case c = make_case();
  const world::Outcome built_in = world::run(c);
  world::Board board(c);
  c.adjust = [&](OptimizerSettings& s, int rank) { board.serve(s, rank); };
  const world::Outcome by_callback = world::run(c);
  CHECK((by_callback.tensors == built_in.tensors));
  for (size_t step = 0; step < by_callback.reports.size(); ++step)
    CHECK(by_callback.reports[step].orthogonalized == built_in.reports[step].orthogonalized);
  // Whole tensors in every step: a gather and a redistribution of each on each rank.
  CHECK(board.calls() == int64_t{2} * 3 * c.steps * c.world);
}

TEST_CASE("step: periods that differ between groups are refused by name", "[unit][optimizer]") {
  OptimizerSettings s;
  s.groups = {GroupSettings::defaults(Role::kMuon), GroupSettings::defaults(Role::kMuon)};
  s.groups[0].name = "attention";
  s.groups[0].blocks.period = 4;
  s.groups[1].name = "mlp";
  s.groups[1].blocks.period = 5;
  CHECK_THROWS_WITH(validate(s, 0, 1), Catch::Contains("group 'mlp'") &&
                                           Catch::Contains("block_period is 5") &&
                                           Catch::Contains("'attention' has 4"));
}
