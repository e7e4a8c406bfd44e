#include <catch2/catch.hpp>
#include <cstring>

#include "support/bits_cases.hpp"
#include "support/rank_check.hpp"

// The rules of a step that are settings (step_textbook_test.cpp compares them with the float64
// reference implementation): the same bits on every mesh, and special cases.

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
                     [=](world::Case& c) { c.settings.groups[0].normuon = axis; }});
  }
  out.push_back({"clipping by the norm", false, [](world::Case& c) {
                   c.settings.clip_norm = 3.25;
                   c.settings.groups[0].momentum_kind = MomentumKind::kHeavyBall;
                   c.settings.groups[1].eps = 0.1;  // AdamW sees the size of its gradients
                 }});
  return out;
}

/// A matrix of rank 0 alone, or a matrix and two vectors over four ranks.
world::Case small(bool alone) {
  world::Case c = world::on_mesh({alone ? 1 : 4});
  const std::vector<Placement> rows = {{PlacementKind::kShard, 0, 1}};
  c.params = {world::matrix("matrix", {24, 60}, rows)};
  c.settings.groups = world::default_groups();
  if (!alone) c.params.push_back(world::matrix("bias", {19}, rows));
  if (!alone) c.params.back().role = Role::kAdamW;
  return c;
}

}  // namespace

TEST_CASE("step rules: forms of weights, decay, NorMuon and clipping have the same bits on meshes",
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
  world::Case c = small(true);
  c.settings.groups[0].weight_decay_kind = WeightDecayKind::kCautious;
  world::on_ranks(1, [&](Comm& comm) {
    world::Rank rank(c, comm);
    StepReport report;
    REQUIRE(rank.step_only(0, report) == Status::kOk);  // gradients begin as zero
    const float kept = 1.0f - static_cast<float>(0.02 * 0.1);
    for (int64_t i = 0; i < 24 * 60; ++i) {
      float after;
      std::memcpy(&after, rank.data(0).data() + 4 * i, 4);
      REQUIRE(after == world::value(0, i, -1) * kept);
    }
  });
}

TEST_CASE("step rules: a gradient that is not read at this step may be missing",
          "[unit][optimizer][rules]") {
  world::Case c = small(false);
  c.settings.groups[1].update_every = 2;
  world::on_ranks(c.world, [&](Comm& comm) {
    world::Rank rank(c, comm);
    StepReport report;
    rank.optimizer().set_grad(1, nullptr);
    RANK_CHECK(rank.step(0, report) == Status::kOk);
    RANK_CHECK_THROWS_AS(rank.step(1, report), Error);
  });
}
