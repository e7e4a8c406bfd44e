#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "muonrt/muonrt.h"
#include "reference/reference.hpp"
#include "support/world.hpp"

// Tests matrices that are stored as inputs x outputs. Their updates must be bitwise identical to
// the updates of the same matrices stored as outputs x inputs, and must match the float64 reference
// implementation.

using namespace muonrt;

namespace {

struct Twin {
  const char* name;
  int64_t stacked, outputs, inputs;
  std::vector<PartSettings> parts;
};

std::vector<Twin> twins() {
  return {{"tall", 1, 24, 6, {}},
          {"wide", 1, 6, 24, {}},
          {"square", 1, 8, 8, {}},
          {"one output", 1, 1, 9, {}},
          {"stack", 3, 5, 7, {}},
          {"fused",
           1,
           12,
           5,
           {{"q", {{0, 5}}, whole(5), 1.0, 0.5},
            {"k", {{5, 9}}, {{0, 3}}, 3.0},
            {"the rest of k", {{5, 9}}, {{3, 5}}, 1.0, 1.0, NormuonAxis::kColumns},
            {"v", {{9, 12}}, whole(5), 1.0}}}};
}

/// Returns a case that contains each matrix twice: stored as outputs x inputs, and then as inputs x
/// outputs.
world::Case make_case() {
  world::Case c;
  c.settings.groups = world::default_groups();
  for (const Twin& t : twins()) {
    for (const bool transposed : {false, true}) {
      world::Param p;
      p.name = cat(t.name, transposed ? " in x out" : " out x in");
      p.shape = {t.outputs, t.inputs};
      if (transposed) std::swap(p.shape[0], p.shape[1]);
      if (t.stacked > 1) {
        p.shape.insert(p.shape.begin(), t.stacked);
        p.view = View::kStack;
      }
      p.transposed = transposed;
      p.parts = t.parts;
      c.params.push_back(std::move(p));
    }
  }
  return c;
}

/// Transposes each matrix of an array of matrices.
std::vector<float> transposed(const std::vector<unsigned char>& bytes, const Twin& t) {
  std::vector<float> from(bytes.size() / 4), to(from.size());
  std::memcpy(from.data(), bytes.data(), bytes.size());
  for (int64_t e = 0; e < t.stacked; ++e) {
    const int64_t first = e * t.outputs * t.inputs;
    for (int64_t r = 0; r < t.outputs; ++r) {
      for (int64_t k = 0; k < t.inputs; ++k)
        to[static_cast<size_t>(first + k * t.outputs + r)] =
            from[static_cast<size_t>(first + r * t.inputs + k)];
    }
  }
  return to;
}

void put(std::vector<unsigned char>& to, const std::vector<float>& from) {
  REQUIRE(to.size() == from.size() * 4);
  std::memcpy(to.data(), from.data(), to.size());
}

/// Runs the steps of a case on one rank. The second matrix of each pair has the transposed values
/// of the first.
void check_twins(const world::Case& c) {
  const std::vector<Twin> all = twins();
  world::on_ranks(1, [&](Comm& comm) {
    world::Rank rank(c, comm);
    const auto first = [](size_t pair) { return static_cast<int64_t>(2 * pair); };
    for (size_t i = 0; i < all.size(); ++i)
      put(rank.data(first(i) + 1), transposed(rank.data(first(i)), all[i]));
    const std::vector<unsigned char> before = rank.data(0);
    for (int64_t step = 0; step < 3; ++step) {
      rank.fill_gradients(step);
      for (size_t i = 0; i < all.size(); ++i)
        put(rank.grad(first(i) + 1), transposed(rank.grad(first(i)), all[i]));
      StepReport report;
      REQUIRE(rank.step_only(step, report) == Status::kOk);
      for (size_t i = 0; i < all.size(); ++i) {
        INFO(all[i].name << ", step " << step);
        const std::vector<float> expected = transposed(rank.data(first(i)), all[i]);
        CHECK(std::memcmp(rank.data(first(i) + 1).data(), expected.data(), expected.size() * 4) ==
              0);
      }
    }
    CHECK(rank.data(0) != before);
  });
}

}  // namespace

TEST_CASE("transposed: in x out is updated as the transpose of out x in, for every scale rule",
          "[unit][optimizer]") {
  for (const ScaleRule rule : {ScaleRule::kMatchRms, ScaleRule::kOriginal, ScaleRule::kRatio,
                               ScaleRule::kMaxDim, ScaleRule::kNone}) {
    INFO("scale_rule " << static_cast<int>(rule));
    world::Case c = make_case();
    c.settings.groups[0].scale_rule = rule;
    // A parameter may set an axis only if its group has one.
    for (world::Param& p : c.params)
      for (PartSettings& part : p.parts) part.normuon_axis = NormuonAxis::kOff;
    check_twins(c);
  }
}

TEST_CASE("transposed: NorMuon's axes, row scaling and blocks count outputs as rows",
          "[unit][optimizer][normuon]") {
  for (const NormuonAxis axis : {NormuonAxis::kRows, NormuonAxis::kColumns, NormuonAxis::kLonger}) {
    INFO("axis " << static_cast<int>(axis));
    world::Case c = make_case();
    c.settings.groups[0].normuon_axis = axis;
    check_twins(c);
  }
  for (const bool blocks : {false, true}) {
    INFO((blocks ? "blocks" : "row scaling"));
    world::Case c = make_case();
    GroupSettings& g = c.settings.groups[0];
    if (blocks) {
      g.blocks = {2, 3, 2};
      g.scale_rule = ScaleRule::kOriginal;
    } else {
      g.row_scaling = RowScaling::kAol;
      g.coefficients = CoefficientFamily::kAol;
      g.steps = 4;
    }
    for (world::Param& p : c.params)
      for (PartSettings& part : p.parts) part.normuon_axis = NormuonAxis::kOff;
    check_twins(c);
  }
}

TEST_CASE("transposed: matrices cut over four ranks match the float64 reference",
          "[unit][optimizer]") {
  world::Case c = world::on_mesh({2, 2});
  c.settings.transport_dtype = DType::kF32;
  c.settings.groups = world::default_groups();
  c.settings.groups[0].scale_rule = ScaleRule::kOriginal;
  c.settings.groups[0].normuon_axis = NormuonAxis::kRows;
  const Placement s0{PlacementKind::kShard, 0, 1}, s1{PlacementKind::kShard, 1, 1};
  // The first matrix is stored as 24 inputs x 60 outputs, and is sharded in both dimensions.
  c.params = {world::matrix("c_fc", {24, 60}, {s0, s1}),
              world::matrix("c_proj", {60, 24}, {s1, s1}),
              world::matrix("square", {31, 31}, {s1, s0})};
  for (world::Param& p : c.params) p.transposed = true;
  const world::Outcome outcome = world::run(c);
  for (size_t i = 0; i < c.params.size(); ++i) {
    INFO(c.params[i].name);
    const int64_t rows = c.params[i].shape[0], cols = c.params[i].shape[1];
    const auto values = [&](int64_t step) {
      reference::Matrix stored(rows, cols);
      for (int64_t e = 0; e < rows * cols; ++e)
        stored.v[static_cast<size_t>(e)] =
            static_cast<double>(world::value(static_cast<int64_t>(i), e, step));
      return reference::transpose(stored);
    };
    reference::Muon how;
    how.lr = c.lr;
    how.scale = reference::Scale::kOriginal;
    how.list = reference::lists::kPolarModded;
    how.safety = 1.02;
    how.normuon = true;
    reference::Matrix w = values(-1), m(cols, rows);
    std::vector<double> v;
    for (int step = 0; step < c.steps; ++step) reference::muon_step(how, w, m, values(step), &v);
    const reference::Matrix expected = reference::transpose(w);
    double worst = 0;
    for (size_t e = 0; e < expected.v.size(); ++e) {
      float x;
      std::memcpy(&x, outcome.tensors.params[i].data() + 4 * e, 4);
      worst = std::max(worst, std::abs(static_cast<double>(x) - expected.v[e]));
    }
    // The bound is the same as in step_reference_test, because the weights have the same
    // magnitude.
    CHECK(worst < 2e-5);
  }
}

TEST_CASE("transposed: the C ABI accepts stacks with any dims and rejects heads in columns",
          "[unit][abi]") {
  // The parameter has 2 layers x 3 experts x (2 x 2 inputs) x 4 outputs.
  const int64_t shape[5] = {2, 3, 2, 2, 4}, flat_shape[3] = {6, 4, 4};
  std::vector<float> data(96), grad(96);
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = world::value(0, static_cast<int64_t>(i), -1);
    grad[i] = world::value(0, static_cast<int64_t>(i), 0);
  }
  std::vector<float> flat = data, flat_grad = grad;
  muonrt_comm_t* comm = nullptr;
  REQUIRE(muonrt_comm_create_self(&comm) == MUONRT_OK);
  muonrt_group_t group;
  muonrt_group_init_muon(&group);
  muonrt_param_t params[2];
  for (muonrt_param_t& p : params) {
    muonrt_param_init(&p);
    p.transposed = 1;
  }
  params[0].name = "experts";
  params[0].ndim = 5;
  params[0].shape = params[0].local_shape = shape;
  params[0].batch_dims = params[0].row_dims = 2;
  params[0].data = data.data();
  params[0].grad = grad.data();
  params[1].name = "the same as a stack";
  params[1].ndim = 3;
  params[1].shape = flat_shape;
  params[1].view = MUONRT_VIEW_STACK;
  params[1].data = flat.data();
  params[1].grad = flat_grad.data();
  muonrt_optimizer_t* optimizer = nullptr;
  REQUIRE(muonrt_optimizer_create(&optimizer, comm, nullptr, &group, 1, params, 2) == MUONRT_OK);
  muonrt_step_args_t step;
  muonrt_step_args_init(&step);
  step.lr = 0.1;
  muonrt_step_report_t report;
  muonrt_step_report_init(&report);
  REQUIRE(muonrt_optimizer_step(&report, optimizer, &step) == MUONRT_OK);
  CHECK(report.orthogonalized == 12);
  CHECK(data == flat);
  CHECK(data[0] != world::value(0, 0, -1));
  muonrt_optimizer_destroy(optimizer);

  muonrt_qk_clip_t clip;
  muonrt_qk_clip_init(&clip);
  clip.kind = MUONRT_QK_QUERY;
  clip.heads = 2;
  clip.head_dim = 8;
  params[0].ndim = 2;
  params[0].shape = flat_shape + 1;
  params[0].local_shape = nullptr;
  params[0].batch_dims = params[0].row_dims = 0;
  params[0].qk_clip = &clip;
  CHECK(muonrt_optimizer_create(&optimizer, comm, nullptr, &group, 1, params, 1) ==
        MUONRT_ERROR_NOT_SUPPORTED);
  const std::string message = muonrt_get_last_error();
  CHECK_THAT(message, Catch::Contains("param 'experts'") && Catch::Contains("transposed is 1") &&
                          Catch::Contains("columns"));
  muonrt_comm_destroy(comm);
}
