#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>

#include "support/attempts.hpp"
#include "support/rank_check.hpp"
#include "support/world.hpp"

// Tests that the first step reports the parameter whose update is largest relative to its weights,
// and that all ranks and meshes report the same parameter.

using namespace muonrt;

namespace {

constexpr Placement kRows{PlacementKind::kShard, 0, 1}, kCols{PlacementKind::kShard, 1, 1},
    kCopy{PlacementKind::kReplicate, 0, 1}, kPartial{PlacementKind::kPartial, 0, 1};

/// Returns the RMS of all weights of the parameter before the first step.
double weight_rms(const world::Param& p, int64_t param) {
  double sum = 0;
  int64_t count = 1;
  for (const int64_t n : p.shape) count *= n;
  for (int64_t i = 0; i < count; ++i) {
    const float x = world::value(param, i, -1);
    const double kept = p.dtype == DType::kBF16 && p.master_kind == MasterKind::kNone
                            ? double{to_f32(to_bf16(x))}
                            : double{x};
    sum += kept * kept;
  }
  return std::sqrt(sum / static_cast<double>(count));
}

/// Returns the reports of all steps, and checks that they are equal on all ranks.
std::vector<LargeUpdate> reports_of(const world::Case& c,
                                    const std::function<void(world::Rank&)>& before = {}) {
  std::vector<std::vector<LargeUpdate>> all(static_cast<size_t>(c.world));
  world::on_ranks(c.world, [&](Comm& comm) {
    world::Rank rank(c, comm);
    if (before) before(rank);
    for (int64_t step = 0; step < c.steps; ++step) {
      StepReport report;
      rank.step(step, report);
      all[static_cast<size_t>(comm.rank())].push_back(report.large_update);
    }
  });
  for (const auto& one : all)
    for (size_t i = 0; i < one.size(); ++i)
      CHECK((one[i].param == all[0][i].param && one[i].ratio == all[0][i].ratio));
  return all[0];
}

world::Case case_on(std::vector<int64_t> mesh, std::vector<Placement> placements, double lr) {
  world::Case c = world::on_mesh(std::move(mesh));
  world::add(c, "vector", {5}, {}).role = Role::kAdamW;
  world::add(c, "small", {7, 5}, placements);
  world::add(c, "large", {6, 24}, placements);
  c.lr = lr;
  c.steps = 2;
  c.settings.groups = world::default_groups();
  return c;
}

void fill(world::Rank& rank, std::vector<unsigned char>& bytes, float x) {
  for (size_t at = 0; at + 4 <= bytes.size(); at += 4) std::memcpy(bytes.data() + at, &x, 4);
  static_cast<void>(rank);
}

}  // namespace

TEST_CASE("first update: each scale rule, kind of weight and mesh has the ratio of the formula",
          "[unit][optimizer][tsan]") {
  const std::map<ScaleRule, double> scale = {{ScaleRule::kMatchRms, 0.2 * std::sqrt(24.0)},
                                             {ScaleRule::kOriginal, 1},
                                             {ScaleRule::kRatio, std::sqrt(6.0 / 24)},
                                             {ScaleRule::kMaxDim, std::sqrt(24.0)},
                                             {ScaleRule::kNone, 1}};
  struct Mesh {
    std::vector<int64_t> shape;
    std::vector<Placement> placements;
  };
  const std::vector<Mesh> meshes = {{{1}, {}},
                                    {{2}, {kRows}},
                                    {{3}, {kCopy}},
                                    {{2, 2}, {kCopy, kCols}},
                                    {{2, 2}, {kPartial, kRows}}};
  struct Kind {
    DType dtype;
    MasterKind master;
  };
  for (const Kind& kind : {Kind{DType::kF32, MasterKind::kNone},
                           {DType::kBF16, MasterKind::kNone},
                           {DType::kBF16, MasterKind::kOwned},
                           {DType::kBF16, MasterKind::kRemainder}}) {
    for (const auto& [rule, factor] : scale) {
      double first = 0;
      for (const Mesh& mesh : meshes) {
        world::Case c = case_on(mesh.shape, mesh.placements, 3.0);
        c.settings.groups[0].scale_rule = rule;
        c.settings.groups[0].lr_factor = 0.5;
        c.settings.groups[0].weight_decay = 0;
        world::Param& large = c.params[2];
        for (size_t i = 1; i < 3; ++i) {
          c.params[i].dtype = kind.dtype;
          c.params[i].master_kind = kind.master;
          if (!mesh.placements.empty() && mesh.placements[0].kind == PlacementKind::kPartial)
            c.params[i].partial_grads = 2;
        }
        large.lr_factor = 100;  // gives this parameter the largest ratio
        const auto reports = reports_of(c);
        const double update = 3.0 * 0.5 * 100 * factor * std::sqrt(6.0 / (6 * 24));
        // Master weights of bf16 parameters start at rounded values, so the expected RMS is
        // computed without master weights.
        if (kind.dtype == DType::kBF16) large.master_kind = MasterKind::kNone;
        CHECK(reports[0].param == 2);
        CHECK(reports[0].ratio == Approx(update / weight_rms(large, 2)).epsilon(1e-12));
        if (first == 0) first = reports[0].ratio;
        CHECK(reports[0].ratio == first);
        CHECK(reports[1].param == -1);  // only the first step reports
      }
    }
  }
}

TEST_CASE("first update: parts, experts and outputs as columns count with their own scale",
          "[unit][optimizer]") {
  world::Case c = world::on_mesh({2});
  c.settings.groups = world::default_groups();
  c.settings.groups[0].scale_rule = ScaleRule::kOriginal;
  c.lr = 2;
  c.steps = 1;
  world::Param& p = world::add(c, "experts", {3, 4, 10}, {kRows});
  p.view = View::kStack;
  p.transposed = true;  // the matrix has 10 outputs and 4 inputs
  p.parts.resize(2);
  p.parts[0].rows = {{0, 2}};
  for (PartSettings& part : p.parts) part.cols = {{0, 4}};
  p.parts[0].lr_factor = 3;
  p.parts[1].rows = {{2, 10}};
  const double squares = std::pow(2.0 * 3, 2) * 2 + std::pow(2 * std::sqrt(8.0 / 4), 2) * 4;
  const LargeUpdate found = reports_of(c)[0];
  CHECK(found.param == 0);
  CHECK(found.ratio == Approx(std::sqrt(squares / 40) / weight_rms(c.params[0], 0)).epsilon(1e-12));
}

TEST_CASE("first update: the reported ratio is the change that the step makes",
          "[unit][optimizer]") {
  world::Case c = case_on({1}, {}, 1.0);
  c.settings.groups[0].weight_decay = 0;
  c.params.pop_back();
  world::on_ranks(1, [&](Comm& comm) {
    world::Rank rank(c, comm);
    const auto before = rank.data(1);
    StepReport report;
    rank.step(0, report);
    double moved = 0, weights = 0;
    for (size_t at = 0; at < before.size(); at += 4) {
      float a, b;
      std::memcpy(&a, before.data() + at, 4);
      std::memcpy(&b, rank.data(1).data() + at, 4);
      moved += std::pow(double{b} - a, 2);
      weights += double{a} * a;
    }
    RANK_CHECK(report.large_update.param == 1);
    RANK_CHECK(std::fabs(report.large_update.ratio / std::sqrt(moved / weights) - 1) < 0.05);
  });
}

TEST_CASE("first update: nothing is reported without a cause", "[unit][optimizer]") {
  // The RMS is 0.2 lr for the update and about 0.58 for the weights.
  const auto on = [](double lr) { return case_on({2}, {kRows}, lr); };
  CHECK(reports_of(on(0.16))[0].param >= 1);
  CHECK(reports_of(on(0.12))[0].param == -1);
  CHECK(reports_of(on(0.12))[0].ratio == 0);
  const auto zeros = [](world::Rank& rank) {
    for (const int64_t param : {1, 2}) fill(rank, rank.data(param), 0);
  };
  CHECK(reports_of(on(1), zeros)[0].param == -1);  // as B in LoRA, which starts at zero
  world::Case adamw = on(1);
  for (size_t i = 1; i < 3; ++i) adamw.params[i].role = Role::kAdamW;
  CHECK(reports_of(adamw)[0].param == -1);
  CHECK(reports_of(on(1), [](world::Rank& rank) { rank.optimizer().set_steps(3); })[0].param == -1);
  world::Case inactive = on(1);
  inactive.inactive_params = {{1, 2}};
  for (const LargeUpdate& report : reports_of(inactive)) CHECK(report.param == -1);
  // The gradient of parameter 2 is zero, like the gradient of LoRA's A in the first step, so this
  // step does not change the parameter.
  world::on_ranks(2, [&](Comm& comm) {
    const world::Case c = on(1);
    world::Rank rank(c, comm);
    rank.fill_gradients(0);
    fill(rank, rank.grad(2), 0);
    StepReport report;
    rank.step_only(0, report);
    RANK_CHECK(report.large_update.param == 1);
  });
}

TEST_CASE(
    "first update: the first committed step reports it, after one that was skipped or rejected",
    "[unit][optimizer]") {
  world::Case c = case_on({2}, {kRows}, 1);
  c.steps = 3;
  c.arguments = [](StepArgs& args, int64_t step, int rank) {
    static const float kFound = 1;
    if (step == 0) args.found_inf = &kFound;
    if (step == 1 && rank == 1) args.lr = -1;
  };
  world::on_ranks(2, [&](Comm& comm) {
    world::Rank rank(c, comm);
    StepReport report;
    RANK_CHECK(rank.step(0, report) == Status::kSkipped && report.large_update.param == -1);
    RANK_CHECK_THROWS_AS(rank.step(1, report), Error);
    RANK_CHECK(rank.step(2, report) == Status::kOk && report.large_update.param >= 1);
  });
}
