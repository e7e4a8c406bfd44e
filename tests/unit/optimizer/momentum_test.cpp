#include <cmath>

#include "support/check_same.hpp"
#include "support/numerics/gradient_cases.hpp"
#include "support/rank_check.hpp"

// How momentum decays in whole optimizers; tests/ops/momentum_ops_test.cpp shows it by op.

using namespace muonrt;

namespace {

/// A matrix whose gradients end after the first step, until its updates do.
world::Case starved(const std::vector<int64_t>& mesh, const std::vector<Placement>& placements,
                    DType momentum, MomentumKind kind) {
  world::Case c = world::on_mesh(mesh);
  c.settings.groups = world::default_groups();
  GroupSettings& group = c.settings.groups[0];
  group.momentum_dtype = momentum;
  group.momentum_kind = kind;
  group.momentum = 0.8;
  group.weight_decay = 0;
  c.params = {world::matrix("expert", {6, 10}, placements)};
  for (const Placement& p : placements)
    if (p.kind == PlacementKind::kPartial) c.params[0].addends = 2;
  return c;
}

/// The step in which the matrix is zero for the first time, and its weights then.
std::pair<int64_t, std::vector<unsigned char>> steps_until_rest(const world::Case& c,
                                                                int64_t most) {
  std::pair<int64_t, std::vector<unsigned char>> out;
  world::on_ranks(c.world, [&](Comm& comm) {
    world::Rank rank(c, comm);
    StepReport report;
    RANK_CHECK(rank.step(0, report) == Status::kOk);
    std::fill(rank.grad(0).begin(), rank.grad(0).end(), static_cast<unsigned char>(0));
    int64_t step = 1;
    while (report.zero_matrices == 0 && step < most)
      RANK_CHECK(rank.step_only(step++, report) == Status::kOk);
    RANK_CHECK(report.zero_matrices == 1);
    const auto before = rank.data(0);
    RANK_CHECK(rank.step_only(step, report) == Status::kOk);
    RANK_CHECK(report.zero_matrices == 1 && rank.data(0) == before);
    for (const unsigned char byte : rank.state(0, StateKind::kMomentum)) RANK_CHECK(byte == 0);
    if (comm.rank() == 0) out = {step, before};
  });
  return out;
}

}  // namespace

TEST_CASE(
    "momentum: a matrix without gradients comes to rest, with momentum of every kind and place",
    "[unit][optimizer][momentum]") {
  const Placement rows{PlacementKind::kShard, 0, 1}, sum{PlacementKind::kPartial, 0, 1};
  for (const MomentumKind kind : {MomentumKind::kEma, MomentumKind::kHeavyBall}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      INFO("heavy ball " << static_cast<int>(kind) << ", " << name_of(dtype));
      // From at most 2 (two addends below 1), to below 2^-126; bf16 is rounded up by 2^-7 at most.
      const double up = dtype == DType::kF32 ? 0 : 0x1p-7;
      const auto most =
          static_cast<int64_t>(std::ceil(127 * std::log(2.0) / -std::log(0.8 * (1 + up)))) + 2;
      const auto [alone, weights] = steps_until_rest(starved({1}, {}, dtype, kind), most);
      // The largest element was above 2^-7, and rounding down takes 2^-7 at most, too.
      CHECK(static_cast<double>(alone) > 119 * std::log(2.0) / -std::log(0.8 * (1 - up)));
      const auto [sharded, of_rows] = steps_until_rest(starved({3}, {rows}, dtype, kind), most);
      CHECK(sharded == alone);
      CHECK(std::equal(of_rows.begin(), of_rows.end(), weights.begin()));
      steps_until_rest(starved({2}, {sum}, dtype, kind), most);
    }
  }
}

namespace {

/// bf16 momentum, and a matrix in parts of several runs of rows and columns.
world::Case with_bf16_momentum(world::Case c) {
  c.settings.groups = world::default_groups();
  c.settings.groups[0].momentum_dtype = DType::kBF16;
  c.settings.seed = 20261127;
  for (world::Param& p : c.params) {
    if (p.name != "gate_up") continue;
    const Runs odd = {{0, 3}, {9, 14}}, even = {{3, 9}, {14, 18}};
    p.parts = {{"odd left", odd, {{0, 2}, {5, 7}}, 1.0},
               {"odd middle", odd, {{2, 5}}, 1.0},
               {"even", even, whole(7), 1.0}};
  }
  return c;
}

}  // namespace

TEST_CASE(
    "momentum: bf16 momentum has the same bits where owners keep it, in parts of several runs",
    "[bits][momentum]") {
  const Placement sum{PlacementKind::kPartial, 0, 1}, all{PlacementKind::kReplicate, 0, 1};
  const auto shard = [](int dim) { return Placement{PlacementKind::kShard, dim, 1}; };
  const auto expected = world::run(with_bf16_momentum(gradients::alone(false, 2))).tensors;
  for (const gradients::Lay& lay : {gradients::Lay{"DDP", {2}, {sum}, {}, {}},
                                    {"rows within", {2, 2}, {sum, shard(0)}, {}, {3, 0, 2, 1}},
                                    {"columns", {2, 2, 2}, {all, sum, shard(-1)}, {}, {}}}) {
    const world::Case c = with_bf16_momentum(gradients::make(lay, false, 2));
    INFO(lay.name << ": " << c.describe());
    world::check_same(c, world::run(c), expected);
  }
}
