#include "optimizer/param_tables.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "host/host_device.hpp"
#include "optimizer/agreement.hpp"
#include "optimizer/problem.hpp"
#include "optimizer/settings/fields.hpp"
#include "optimizer/settings/settings.hpp"

// Tests the tables of a step on rank 0 of 2, without a communicator and without running a step.

using namespace muonrt;

namespace {

enum : int32_t { kMatrix, kVector, kLate, kPartialGrads };

/// The tables of a matrix, a vector, a vector that is updated in every second step, and a matrix
/// whose partial gradients rank 0 adds.
struct Rig {
  Rig() {
    settings.groups = {GroupSettings::defaults(Role::kMuon), GroupSettings::defaults(Role::kAdamW),
                       GroupSettings::defaults(Role::kAdamW)};
    settings.groups[2].update_every = 2;
    add("matrix", 0, {2, 3}, PlacementKind::kReplicate);
    add("vector", 1, {6}, PlacementKind::kReplicate);
    add("late", 2, {6}, PlacementKind::kReplicate);
    add("partial", 0, {3, 2}, PlacementKind::kPartial);
    settings.params.back().owner = 0;
    plan = Plan(make_problem(settings, make_newton_schulz(settings), 2));
    const auto chunks = plan.rank_chunks(0);
    state = State(*device, settings, plan, chunks, 0);
    tables = ParamTables(*device, settings, state, chunks, 0);
    step.lr = 0.1;
  }
  void add(const char* name, int32_t group, std::vector<int64_t> shape, PlacementKind kind) {
    ParamSettings p;
    p.name = name;
    p.group = group;
    p.layout = Layout::from_placements(std::make_shared<Mesh>(std::vector<int64_t>{2}),
                                       std::move(shape), {{kind, 0, 1}}, Reading::kLiteral);
    p.data = data[settings.params.size()].data();
    p.grad = data[settings.params.size() + 4].data();
    settings.params.push_back(std::move(p));
  }
  int64_t fill(int64_t committed = 0) {
    return tables.fill_for_step(settings, plan, step, committed, false);
  }
  std::vector<int32_t> active() const {
    std::vector<int32_t> out;
    for (int i = 0; i < 5; ++i) out.push_back(tables.params()[i].active);
    return out;
  }

  std::array<std::array<float, 6>, 8> data{};
  std::unique_ptr<Device> device = host::make_host_device({});
  OptimizerSettings settings;
  Plan plan = Plan(Problem{});
  State state;
  ParamTables tables;
  StepArgs step;
};

double other(double value) { return std::nextafter(value, std::numeric_limits<double>::max()); }
bool other(bool value) { return !value; }

}  // namespace

TEST_CASE("tables: the fingerprint differs if one bit of the arguments differs",
          "[unit][optimizer]") {
  Rig rig;
  const int64_t fingerprint = rig.fill();
  CHECK(rig.fill() == fingerprint);
  CHECK(rig.fill(2) != fingerprint);
  rig.step.lr = other(rig.step.lr);
  CHECK(rig.fill() != fingerprint);
  rig.step.lr = 0.1;
  rig.step.group_lrs = {0.1, 0.1, other(0.1)};
  CHECK(rig.fill() != fingerprint);
  rig.step.group_lrs = {0.1, 0.1, 0.1};
  CHECK(rig.fill() == fingerprint);
  rig.step.group_lrs.clear();
  rig.step.grad_scale_inv = other(1.0);
  CHECK(rig.fill() != fingerprint);
  rig.step.grad_scale_inv = 1.0;
  rig.step.inactive_params = {kMatrix};
  CHECK(rig.fill() != fingerprint);
  rig.step.inactive_params.clear();
  CHECK(rig.fill() == fingerprint);
  rig.tables.on_commit();
  CHECK(rig.fill() != fingerprint);
}

TEST_CASE("tables: the fingerprint contains every setting that may change between steps",
          "[unit][optimizer]") {
  Rig rig;
  const int64_t fingerprint = rig.fill();
  int changeable = 0;
  for (GroupSettings& group : rig.settings.groups) {
    visit_group_fields([&](const auto& row) {
      if constexpr (requires { other(row.member(group)); }) {
        if (row.has(kFixed)) return;
        auto& field = row.member(group);
        const auto before = field;
        field = other(before);
        INFO(row.name);
        CHECK(rig.fill() != fingerprint);
        field = before;
        ++changeable;
      } else if constexpr (requires { row.member(group); }) {
        REQUIRE(row.has(kFixed));
      }
    });
  }
  CHECK(changeable >= 3 * 9);
  CHECK(rig.fill() == fingerprint);
}

TEST_CASE("tables: which parameters are active", "[unit][optimizer]") {
  Rig rig;
  CHECK(rig.active() == std::vector<int32_t>{0, 0, 0, 0, 0});  // before the first step
  rig.fill(0);
  CHECK(rig.active() == std::vector<int32_t>{1, 1, 0, 1, 1});
  CHECK(rig.tables.params()[kLate].clip_only == 1);
  rig.fill(1);
  CHECK(rig.active() == std::vector<int32_t>{1, 1, 1, 1, 1});
  CHECK(rig.tables.params()[kLate].clip_only == 0);
  // Owner state is active if its parameter is active.
  CHECK(rig.tables.param_of(4) == kPartialGrads);
  CHECK(rig.tables.param_of(kVector) == kVector);
  rig.step.inactive_params = {kLate, kPartialGrads};
  rig.fill(0);
  CHECK(rig.active() == std::vector<int32_t>{1, 1, 0, 0, 0});
  CHECK(rig.tables.params()[kLate].clip_only == 0);
  // Only the matrix is listed as inactive, so another parameter without a gradient is an error.
  rig.step.inactive_params = {kMatrix};
  rig.tables.params()[kVector].grad = nullptr;
  const auto error = capture_error([&] { rig.fill(0); });
  REQUIRE(error);
  CHECK(error->status() == Status::kInvalidArgument);
  CHECK(error->message().find("param 'vector': grad is NULL") == 0);
  rig.tables.deactivate_all();
  CHECK(rig.active() == std::vector<int32_t>{0, 0, 0, 0, 0});
}

TEST_CASE("tables: updates of AdamW are counted for each parameter", "[unit][optimizer]") {
  Rig rig;
  const auto counts = [&] {
    return std::pair(rig.tables.updates(kVector), rig.tables.updates(kLate));
  };
  for (int64_t committed = 0; committed < 4; ++committed) {
    rig.step.inactive_params.clear();
    if (committed == 1) rig.step.inactive_params = {kVector};
    rig.fill(committed);
    rig.tables.on_commit();
  }
  CHECK(counts() == std::pair<int64_t, int64_t>(3, 2));
  rig.tables.deactivate_all();
  rig.tables.on_commit();
  CHECK(counts() == std::pair<int64_t, int64_t>(3, 2));
  rig.tables.set_steps(rig.settings, 7);
  CHECK(counts() == std::pair<int64_t, int64_t>(7, 3));
}
