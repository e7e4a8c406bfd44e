#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "support/world.hpp"
#include "textbook/textbook.hpp"

// Whole steps over ranks against a float64 textbook that gathers everything, steps once, and cuts
// the result (the full-gather reference of distributed Muon).

using namespace muonrt;

namespace {

struct Setting {
  const char* name;
  CoefficientFamily family;
  textbook::List list;
  double safety;
  MomentumKind momentum;
  bool nesterov;
  ScaleRule rule;
  textbook::Scale scale;
};

std::vector<Setting> settings() {
  using namespace textbook;
  return {{"polar express", CoefficientFamily::kPolarExpress, lists::kPolarModded, 1.02,
           MomentumKind::kEma, true, ScaleRule::kMatchRms, Scale::kMatchRms},
          {"keller jordan", CoefficientFamily::kKellerJordan, lists::kKellerJordan, 1.0,
           MomentumKind::kHeavyBall, true, ScaleRule::kOriginal, Scale::kOriginal},
          {"you jiacheng", CoefficientFamily::kYouJiacheng, lists::kYouJiacheng, 1.0,
           MomentumKind::kEma, false, ScaleRule::kRatio, Scale::kRatio},
          {"heavy ball without nesterov", CoefficientFamily::kPolarExpress, lists::kPolarModded,
           1.02, MomentumKind::kHeavyBall, false, ScaleRule::kNone, Scale::kNone}};
}

world::Case make_case(const Setting& s) {
  world::Case c;
  c.mesh = {2, 2};
  c.world = 4;
  c.steps = 3;
  c.settings.transport = DType::kF32;
  c.settings.groups = world::default_groups();
  GroupSettings& g = c.settings.groups[0];
  g.coefficients = s.family;
  g.momentum_kind = s.momentum;
  g.nesterov = s.nesterov;
  g.scale_rule = s.rule;
  const auto add = [&](const char* name, std::vector<int64_t> shape, Role role,
                       std::vector<Placement> placements) {
    world::Param p;
    p.name = name;
    p.shape = std::move(shape);
    p.role = role;
    p.placements = std::move(placements);
    c.params.push_back(std::move(p));
  };
  const Placement r{PlacementKind::kReplicate, 0, 1}, s0{PlacementKind::kShard, 0, 1},
      s1{PlacementKind::kShard, 1, 1};
  add("wide", {24, 60}, Role::kMuon, {r, s0});
  add("tall", {61, 24}, Role::kMuon, {s0, s1});
  add("square", {40, 40}, Role::kMuon, {s1, s0});
  add("row", {1, 33}, Role::kMuon, {s0, s1});
  add("bias", {19}, Role::kAdamW, {s0, s0});
  return c;
}

// Spectra well inside the range where the polynomial is close to flat, so that the error of a sum
// in f32 is not magnified: the tolerance below is for that.
double relative_error(const textbook::Matrix& expected, const std::vector<unsigned char>& bytes) {
  double worst = 0, size = 0;
  for (size_t i = 0; i < expected.v.size(); ++i) {
    float x;
    std::memcpy(&x, bytes.data() + 4 * i, 4);
    worst = std::max(worst, std::abs(x - expected.v[i]));
    size = std::max(size, std::abs(expected.v[i]));
  }
  return worst / size;
}

}  // namespace

TEST_CASE("step: Muon and AdamW over four ranks follow the float64 textbook", "[unit][optimizer]") {
  for (const Setting& s : settings()) {
    INFO(s.name);
    const world::Case c = make_case(s);
    const world::Outcome outcome = world::run(c);
    for (size_t i = 0; i < c.params.size(); ++i) {
      const world::Param& p = c.params[i];
      INFO(p.name);
      const int64_t rows = p.shape[0], cols = p.shape.size() > 1 ? p.shape[1] : 1;
      textbook::Matrix w(rows, cols), m(rows, cols), v(rows, cols), g(rows, cols);
      const auto fill = [&](textbook::Matrix& to, int64_t step) {
        for (int64_t e = 0; e < rows * cols; ++e) {
          to.v[static_cast<size_t>(e)] = world::value(static_cast<int64_t>(i), e, step);
        }
      };
      fill(w, -1);
      for (int step = 0; step < c.steps; ++step) {
        fill(g, step);
        if (p.role == Role::kMuon) {
          textbook::Muon how;
          how.lr = c.lr;
          how.heavy_ball = s.momentum == MomentumKind::kHeavyBall;
          how.nesterov = s.nesterov;
          how.scale = s.scale;
          how.list = s.list;
          how.safety = s.safety;
          textbook::muon_step(how, w, m, g);
        } else {
          textbook::AdamW how;
          how.lr = c.lr;
          textbook::adamw_step(how, step + 1, w.v, m.v, v.v, g.v);
        }
      }
      // Weights are of size 1; a step moves them by at most 0.2 x 0.02 x sqrt(61) x 1.2, in which
      // f32 products err by a few 1e-6 after the list's gain (largest slope about 1e3, eps 6e-8,
      // over at most 60 terms).
      CHECK(relative_error(w, outcome.tensors.params[i]) < 2e-5);
      CHECK(relative_error(m, outcome.tensors.momentum[i]) < 1e-6);
      if (p.role == Role::kAdamW) CHECK(relative_error(v, outcome.tensors.variance[i]) < 1e-6);
    }
  }
}

TEST_CASE("step: a rank-one gradient gives the closed form", "[unit][optimizer]") {
  // sigma = 1 after normalization, so the update is p(1) times the unit direction: 0.903537 for
  // Polar Express, 0.696436 for Keller Jordan.
  for (const bool jordan : {false, true}) {
    world::Case c;
    c.mesh = {3};
    c.world = 3;
    c.steps = 1;
    c.lr = 1.0;
    c.settings.transport = DType::kF32;
    c.settings.groups = world::default_groups();
    c.settings.groups[0].weight_decay = 0.0;
    c.settings.groups[0].scale_rule = ScaleRule::kNone;
    if (jordan) c.settings.groups[0].coefficients = CoefficientFamily::kKellerJordan;
    world::Param p;
    p.name = "row";
    p.shape = {1, 64};
    p.placements = {{PlacementKind::kShard, 1, 1}};
    c.params = {p};
    const world::Outcome outcome = world::run(c);
    double squares = 0;
    for (int64_t e = 0; e < 64; ++e) {
      float x;
      std::memcpy(&x, outcome.tensors.params[0].data() + 4 * e, 4);
      const double moved = static_cast<double>(x) - world::value(0, e, -1);
      squares += moved * moved;
    }
    CHECK(std::sqrt(squares) == Approx(jordan ? 0.696436 : 0.903537).epsilon(3e-5));
  }
}

TEST_CASE("step: scaling every gradient by a power of two changes no bit of a first step",
          "[unit][optimizer]") {
  world::Case c = make_case(settings()[0]);
  c.steps = 1;
  c.params.pop_back();  // AdamW's eps is not scale-free
  const auto plain = world::run(c).tensors.params;
  std::vector<std::vector<unsigned char>> scaled;
  world::on_ranks(1, [&](Comm& comm) {
    world::Case one = c;
    one.world = 1;
    one.mesh = {1};
    for (auto& p : one.params) p.placements.clear();
    world::Rank rank(one, comm);
    rank.fill_gradients(0);
    StepReport report;
    const Status status = rank.optimizer().step(
        [&] {
          StepSettings s;
          s.lr = c.lr;
          s.grad_scale_inv = 0x1p-20;
          return s;
        },
        report);
    CHECK(status == Status::kOk);
    for (size_t i = 0; i < one.params.size(); ++i)
      scaled.push_back(rank.data(static_cast<int64_t>(i)));
  });
  CHECK(plain == scaled);
}
