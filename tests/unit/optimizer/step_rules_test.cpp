#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "support/attempts.hpp"
#include "support/bits_cases.hpp"
#include "support/caller_functions.hpp"
#include "support/rank_check.hpp"

// Tests rules that settings select for a step, such as NorMuon and cautious decay. Results must be
// bitwise identical on every mesh, and special cases must be correct. step_reference_test.cpp
// compares the rules with the float64 reference implementation.

using namespace muonrt;

namespace {

struct Rule {
  std::string name;
  bool half;
  std::function<void(world::Case&)> change;
};

std::vector<Rule> rules() {
  std::vector<Rule> out;
  for (const MasterKind kind :
       {MasterKind::kNone, MasterKind::kRemainder, MasterKind::kStochastic}) {
    for (const DType momentum : {DType::kF32, DType::kBF16}) {
      out.push_back({cat("bf16 weights of kind ", static_cast<int>(kind), ", momentum in ",
                         name_of(momentum)),
                     true, [=](world::Case& c) {
                       c.settings.seed = 20261120;
                       c.settings.groups[0].momentum_dtype = momentum;
                       for (size_t i = 0; i < c.params.size(); ++i) {
                         c.params[i].dtype = DType::kBF16;
                         c.params[i].master_kind = kind;
                         c.params[i].lr_factor = i % 2 ? 0.5 : 1.0;
                       }
                     }});
    }
  }
  for (const auto& [kind, decay] : {std::pair{WeightDecayKind::kDecoupled, 0.5},
                                    {WeightDecayKind::kIndependent, 0.01},
                                    {WeightDecayKind::kLrSquared, 20.0},
                                    {WeightDecayKind::kCautious, 0.5}}) {
    out.push_back({cat("weight decay kind ", static_cast<int>(kind), ", folded AdamW"), true,
                   [=](world::Case& c) {
                     for (GroupSettings& g : c.settings.groups) {
                       g.weight_decay_kind = kind;
                       g.weight_decay = decay;
                     }
                     c.settings.groups[1].adam_form = AdamForm::kFolded;
                     c.settings.groups[1].update_every = 2;
                   }});
  }
  for (const NormuonAxis axis : {NormuonAxis::kRows, NormuonAxis::kLonger}) {
    for (const bool half : {false, true})
      out.push_back({cat("normuon axis ", static_cast<int>(axis)), half,
                     [=](world::Case& c) { c.settings.groups[0].normuon_axis = axis; }});
  }
  out.push_back({"clipping by the norm", false, [](world::Case& c) {
                   c.settings.clip_norm = 3.25;
                   c.settings.groups[0].momentum_kind = MomentumKind::kHeavyBall;
                   // With this eps, AdamW depends on the magnitude of its gradients.
                   c.settings.groups[1].adamw_eps = 0.1;
                 }});
  return out;
}

}  // namespace

TEST_CASE("step rules: weights, decay, NorMuon and clipping are bitwise identical on meshes",
          "[bits][rules]") {
  for (const Rule& rule : rules()) {
    const auto outcome_on = [&](const bits::Factors& f) {
      world::Case c = bits::make(f, rule.half, 4);
      rule.change(c);
      INFO(rule.name << ": " << c.describe());
      return world::run(c);
    };
    const world::Outcome expected = outcome_on({});
    for (const bits::Factors& f : {bits::Factors{.mesh = 5, .scheme = 1, .window = 2, .threads = 2},
                                   {.mesh = 3, .window = 1, .chunk = 1, .commit = 1},
                                   {.mesh = 9, .scheme = 5},
                                   {.mesh = 10, .scheme = 3, .chunk = 1, .threads = 2},
                                   {.mesh = 8, .scheme = 2, .window = 4, .commit = 1}}) {
      INFO(rule.name << ", mesh " << f.mesh);
      const world::Outcome found = outcome_on(f);
      CHECK((found.tensors == expected.tensors));
      for (size_t s = 0; s < found.reports.size(); ++s)
        CHECK(found.reports[s].grad_norm == expected.reports[s].grad_norm);
    }
  }
}

TEST_CASE("step rules: cautious decay acts if the update is zero", "[unit][optimizer][rules]") {
  world::Case c = world::on_mesh({1});
  world::add(c, "matrix", {24, 60}, {});
  c.settings.groups = world::default_groups();
  c.settings.groups[0].weight_decay_kind = WeightDecayKind::kCautious;
  world::on_each(c, [&](world::Rank& rank, Comm&) {
    StepReport report;
    REQUIRE(rank.step_only(0, report) == Status::kOk);  // the gradients are still zero
    const float kept = 1.0f - static_cast<float>(0.02 * 0.1);
    for (int64_t i = 0; i < 24 * 60; ++i) {
      float after;
      std::memcpy(&after, rank.data(0).data() + 4 * i, 4);
      REQUIRE(after == world::value(0, i, -1) * kept);
    }
  });
}

TEST_CASE("step rules: a gradient that is not read in this step may be missing",
          "[unit][optimizer][rules]") {
  world::Case c = world::on_mesh({4});
  world::add(c, "matrix", {24, 60}, {{PlacementKind::kShard, 0, 1}});
  world::add(c, "bias", {19}, {{PlacementKind::kShard, 0, 1}});
  c.settings.groups = world::default_groups();
  c.settings.groups[1].update_every = 2;
  world::on_each(c, [&](world::Rank& rank, Comm&) {
    StepReport report;
    rank.optimizer().set_grad(1, nullptr);
    RANK_CHECK(rank.step(0, report) == Status::kOk);
    RANK_CHECK_THROWS_AS(rank.step(1, report), Error);
  });
}

TEST_CASE("normuon: has no effect on a single row or column, on any axis",
          "[unit][optimizer][normuon]") {
  const auto after = [](NormuonAxis axis, std::vector<int64_t> shape, bool transposed, bool part) {
    world::Case c = world::on_mesh({2});
    c.steps = 3;
    c.settings.groups = world::default_groups();
    c.settings.groups[0].normuon_axis = axis;
    c.params = {world::matrix("gate", shape, {{PlacementKind::kShard, 0, 1}})};
    c.params[0].transposed = transposed;
    if (shape.size() == 3) c.params[0].view = View::kStack;
    if (part)  // each part is a single row, but the matrix is not
      c.params[0].parts = {{"line", {{0, 1}}, whole(12)}, {"line", {{1, 2}}, whole(12)}};
    world::on_each(c, [&](world::Rank& rank, Comm&) {
      RANK_CHECK_THROWS_AS(rank.state(0, StateKind::kNormuon), Error);
    });
    return world::run(c).tensors;
  };
  for (const std::vector<int64_t>& shape : std::initializer_list<std::vector<int64_t>>{
           {1, 12}, {12, 1}, {4, 1, 12}, {4, 12, 1}, {2, 12}}) {
    for (const bool transposed : {false, true}) {
      const bool part = shape[0] == 2;
      if (part && transposed) continue;
      const world::Tensors off = after(NormuonAxis::kOff, shape, transposed, part);
      for (const NormuonAxis axis :
           {NormuonAxis::kRows, NormuonAxis::kColumns, NormuonAxis::kLonger}) {
        INFO("axis " << static_cast<int>(axis) << ", shape " << cat(shape) << ", transposed "
                     << transposed);
        CHECK((after(axis, shape, transposed, part) == off));
      }
    }
  }
}

namespace {

/// Returns a case with a matrix that has one NorMuon moment per row.
world::Case with_moments(std::vector<int64_t> mesh, std::vector<int64_t> shape) {
  world::Case c = world::on_mesh(std::move(mesh));
  c.settings.groups = world::default_groups();
  c.settings.groups[0].normuon_axis = NormuonAxis::kRows;
  const Placement replicas{PlacementKind::kReplicate, 0, 1}, rows{PlacementKind::kShard, 0, 1};
  c.params = {world::matrix("matrix", std::move(shape), {replicas, rows})};
  return c;
}

}  // namespace

TEST_CASE("normuon: moments do not change in a skipped step or if the parameter is inactive",
          "[unit][optimizer][normuon]") {
  world::Case c = with_moments({1, 1}, {61, 24});
  c.inactive_params = {{}, {}, {0}};
  world::on_each(c, [](world::Rank& rank, Comm&) {
    StepReport report;
    RANK_CHECK(rank.step(0, report) == Status::kOk);
    const auto moments = rank.state(0, StateKind::kNormuon);
    RANK_CHECK(moments.size() == 61 * 4);
    RANK_CHECK(*std::max_element(moments.begin(), moments.end()) > 0);
    rank.fill_gradients(1);
    std::memset(rank.grad(0).data() + 400, 0xff, 4);  // NaN
    RANK_CHECK(rank.step_only(1, report) == Status::kSkipped);
    RANK_CHECK(rank.state(0, StateKind::kNormuon) == moments);
    RANK_CHECK(rank.step(2, report) == Status::kOk);
    RANK_CHECK(rank.state(0, StateKind::kNormuon) == moments);
  });
}

TEST_CASE("normuon: parts have their own axes", "[unit][optimizer][normuon]") {
  world::Case c = with_moments({1, 1}, {61, 24});
  c.params[0].parts = {{"top", {{0, 20}}, {{0, 24}}, 1.0, 1.0, NormuonAxis::kColumns},
                       {"rest", {{20, 61}}, {{0, 24}}}};
  world::on_each(c, [](world::Rank& rank, Comm&) {
    RANK_CHECK(rank.state(0, StateKind::kNormuon).size() == (24 + 41) * 4);
  });
  c.settings.groups[0].normuon_axis = NormuonAxis::kOff;
  CHECK_THROWS_WITH(world::run(c), Catch::Contains("normuon_axis is set"));
}

TEST_CASE("normuon: one owner per replica gives the moments of one rank",
          "[unit][optimizer][normuon]") {
  const auto moments_on = [](std::vector<int64_t> mesh) {
    world::Case c = with_moments(std::move(mesh), {24, 60});
    c.settings.replica_mode = ReplicaMode::kEach;
    c.params[0].parts = {{"top", {{0, 10}}, {{0, 60}}}, {"rest", {{10, 24}}, {{0, 60}}}};
    return world::on_each(c, [](world::Rank& rank, Comm&) {
      StepReport report;
      for (int step = 0; step < 3; ++step) rank.step(step, report);
      return rank.state(0, StateKind::kNormuon);
    });
  };
  const auto expected = moments_on({1, 1})[0];
  REQUIRE(expected.size() == 24 * 4);
  std::vector<int> found(24, 0);
  for (const auto& moments : moments_on({2, 2})) {
    if (moments.empty()) continue;
    REQUIRE(moments.size() == expected.size());
    for (size_t line = 0; line < 24; ++line)
      found[line] += std::memcmp(&moments[line * 4], &expected[line * 4], 4) == 0;
  }
  for (const int owners : found) CHECK(owners == 2);  // one owner in every replica
}

namespace {

constexpr int kPeriod = 3;

world::Case with_blocks() {
  world::Case c = world::on_mesh({2, 2});
  c.settings.transport_dtype = DType::kF32;
  c.settings.groups = world::default_groups();
  c.settings.groups[0].blocks = {kPeriod, 2, 3, 0.25};
  const Placement r{PlacementKind::kReplicate, 0, 1}, s0{PlacementKind::kShard, 0, 1},
      s1{PlacementKind::kShard, 1, 1};
  c.params = {world::matrix("wide", {25, 61}, {r, s0}), world::matrix("tall", {61, 24}, {s0, s1}),
              world::matrix("row", {1, 32}, {s0, s1})};
  return c;
}

}  // namespace

TEST_CASE("blocks: blocks that are shards need no messages between ranks", "[unit][optimizer]") {
  world::Case c = world::on_mesh({2});
  c.steps = 2;
  c.settings.groups = world::default_groups();
  c.settings.groups[0].blocks = {2, 2, 1, 1.0};
  c.params = {world::matrix("w", {16, 24}, {{PlacementKind::kShard, 0, 1}})};
  world::on_each(c, [&](world::Rank& rank, Comm&) {
    StepReport whole, blocks;
    RANK_CHECK(rank.step(0, whole) == Status::kOk);
    RANK_CHECK(rank.step(1, blocks) == Status::kOk);
    RANK_CHECK(blocks.planned == 2);
    // Both steps send the vote. The whole-matrix step also sends half a matrix in bf16, in the
    // gather or in the return.
    RANK_CHECK(blocks.bytes_sent + 8 * 24 * 2 <= whole.bytes_sent);
    const std::string text = rank.optimizer().describe(false);
    RANK_CHECK(text.find("those between take blocks") != std::string::npos);
    RANK_CHECK(rank.optimizer().describe(true).find("\"block_plan\":{") != std::string::npos);
  });
}

TEST_CASE("blocks, update_every: step numbers that differ between ranks return MISMATCH",
          "[unit][optimizer]") {
  world::Case rests = world::on_mesh({3});
  rests.params = {world::matrix("embedding", {12, 8}, {{PlacementKind::kPartial, 0, 1}})};
  rests.params[0].role = Role::kAdamW;
  rests.params[0].partial_grads = 3;
  rests.settings.groups = world::default_groups();
  rests.settings.groups[1].update_every = 2;
  // The number that rank 2 sets would make its next step a full step (first case), or a step in
  // which the parameter is inactive (second case).
  for (const auto& [c, number, setting] :
       {std::tuple{with_blocks(), 2 * kPeriod, "block_period 3"}, {rests, 4, "update_every 2"}}) {
    const auto ends = world::on_each(c, [number = number](world::Rank& rank, Comm& comm) {
      StepReport report;
      RANK_CHECK(rank.step(0, report) == Status::kOk);
      if (comm.rank() == 2) rank.optimizer().set_steps(number);
      const world::Ended end = world::attempt(rank, 1);
      rank.optimizer().set_steps(1);
      RANK_CHECK(rank.step(1, report) == Status::kOk && report.step == 2);
      return end;
    });
    for (const world::Ended& end : ends) {
      CHECK(end.status == Status::kMismatch);
      CHECK(end.unchanged);
      CHECK_THAT(end.message, Catch::Contains(cat("committed steps is ", number, " on rank 2")) &&
                                  Catch::Contains("1 on rank 0") && Catch::Contains(setting));
    }
  }
}

TEST_CASE("blocks: the caller's functions give bitwise identical results", "[bits][functions]") {
  world::Case c = with_blocks();
  const world::Outcome built_in = world::run(c);
  world::Board board(c);
  c.adjust = [&](OptimizerSettings& s, int rank) { board.serve(s, rank); };
  const world::Outcome by_callback = world::run(c);
  CHECK((by_callback.tensors == built_in.tensors));
  for (size_t step = 0; step < by_callback.reports.size(); ++step)
    CHECK(by_callback.reports[step].orthogonalized == built_in.reports[step].orthogonalized);
  // Every step uses whole tensors, and each rank gathers and redistributes each tensor once.
  CHECK(board.calls() == int64_t{2} * 3 * c.steps * c.world);
}

TEST_CASE("blocks: periods that differ between groups are rejected, and named",
          "[unit][optimizer]") {
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
