#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "reference/reference.hpp"
#include "support/world.hpp"

// Compares whole steps over several ranks with the float64 reference implementation, which runs
// each step on whole tensors.

using namespace muonrt;

namespace {

constexpr int kSteps = 6;

/// The same settings for the library and for the reference implementation.
struct Row {
  std::string name;
  GroupSettings muon = GroupSettings::defaults(Role::kMuon);
  GroupSettings adamw = GroupSettings::defaults(Role::kAdamW);
  reference::Muon how;
  reference::AdamW adam;
  double variance_tolerance = 2e-6;
};

std::vector<Row> rows() {
  std::vector<Row> out;
  const auto add = [&](std::string name) -> Row& {
    Row& row = out.emplace_back();
    row.name = std::move(name);
    row.how.list = reference::lists::kPolarModded;
    row.how.safety = 1.02;
    return row;
  };
  add("default");
  Row& keller = add("keller jordan, heavy ball, original scale");
  keller.muon.coefficients = CoefficientFamily::kKellerJordan;
  keller.muon.momentum_kind = MomentumKind::kHeavyBall;
  keller.muon.scale_rule = ScaleRule::kOriginal;
  keller.how.list = reference::lists::kKellerJordan;
  keller.how.safety = 1.0;
  keller.how.heavy_ball = true;
  keller.how.scale = reference::Scale::kOriginal;
  Row& you = add("you jiacheng, ratio");
  you.muon.coefficients = CoefficientFamily::kYouJiacheng;
  you.muon.nesterov = you.how.nesterov = false;
  you.muon.scale_rule = ScaleRule::kRatio;
  you.how.list = reference::lists::kYouJiacheng;
  you.how.safety = 1.0;
  you.how.scale = reference::Scale::kRatio;
  Row& heavy = add("heavy ball without nesterov, no scale");
  heavy.muon.momentum_kind = MomentumKind::kHeavyBall;
  heavy.muon.nesterov = heavy.how.nesterov = false;
  heavy.muon.scale_rule = ScaleRule::kNone;
  heavy.how.heavy_ball = true;
  heavy.how.scale = reference::Scale::kNone;
  for (const auto& [kind, decay, amount] :
       {std::tuple{WeightDecayKind::kDecoupled, reference::Decay::kDecoupled, 0.5},
        {WeightDecayKind::kIndependent, reference::Decay::kIndependent, 0.01},
        {WeightDecayKind::kLrSquared, reference::Decay::kLrSquared, 20.0},
        {WeightDecayKind::kCautious, reference::Decay::kCautious, 0.5}}) {
    Row& row = add(cat("weight decay kind ", static_cast<int>(kind)));
    row.muon.weight_decay_kind = row.adamw.weight_decay_kind = kind;
    row.muon.weight_decay = row.adamw.weight_decay = amount;
    row.how.decay = row.adam.decay = decay;
    row.how.weight_decay = row.adam.weight_decay = amount;
  }
  for (const NormuonAxis axis : {NormuonAxis::kRows, NormuonAxis::kColumns, NormuonAxis::kLonger}) {
    Row& row = add(cat("normuon axis ", static_cast<int>(axis)));
    row.muon.normuon_axis = axis;
    row.muon.normuon_beta2 = row.how.normuon_beta2 = 0.9;
  }
  add("blocks").muon.blocks = {3, 2, 3, 0.25};
  for (const auto& [equilibrate, renormalize] :
       {std::pair{true, false}, {false, true}, {true, true}}) {
    Row& row = add(cat("equilibrated ", equilibrate, ", renormalized ", renormalize));
    row.muon.row_scaling = equilibrate ? RowScaling::kEquilibrate : RowScaling::kNone;
    row.muon.renormalize = row.how.renormalize = renormalize;
    row.how.equilibrate = equilibrate;
  }
  for (const auto& [folded, every] : {std::pair{true, 1}, {false, 3}, {true, 3}}) {
    Row& row = add(cat(folded ? "folded" : "torch", " AdamW at every step ", every));
    row.adamw.adam_form = folded ? AdamForm::kFolded : AdamForm::kTorch;
    row.adam.folded = folded;
    row.adamw.update_every = every;
    // With a large eps, the test detects an error in the position of eps in the formula.
    row.adamw.adamw_eps = row.adam.eps = 0.05;
    row.adamw.beta1 = row.adam.beta1 = 0.8;
    row.adamw.beta2 = row.adam.beta2 = 0.9;
  }
  Row& slow = add("AdamW with beta2 near 1 and without eps");
  slow.adamw.beta2 = slow.adam.beta2 = 0.99999;
  slow.adamw.adamw_eps = slow.adam.eps = 0.0;
  // In f32, 1 - beta2 has a large relative error. The bias correction cancels this error in the
  // weights.
  slow.variance_tolerance = 6e-3;
  return out;
}

/// Returns the learning rate. Each group has its own schedule.
double lr_of(Role role, int64_t step) {
  return role == Role::kMuon ? 0.02 / static_cast<double>(step + 1) : 0.05;
}

bool scales_neurons(const Row& row) { return row.how.equilibrate || row.how.renormalize; }

/// Returns a case with wide, tall and square matrices and vectors in all placements. Two parameters
/// have their own learning rates. If rows or columns are scaled, the case also has a transposed
/// matrix and a matrix with parts.
world::Case case_of(const Row& row) {
  world::Case c = world::on_mesh({2, 2});
  c.steps = kSteps;
  c.settings.transport_dtype = DType::kF32;
  c.settings.groups = {row.muon, row.adamw};
  c.lr = std::numeric_limits<double>::quiet_NaN();
  c.arguments = [](StepArgs& s, int64_t step, int) {
    s.group_lrs = {lr_of(Role::kMuon, step), lr_of(Role::kAdamW, step)};
  };
  const Placement r{PlacementKind::kReplicate, 0, 1}, s0{PlacementKind::kShard, 0, 1},
      s1{PlacementKind::kShard, 1, 1};
  c.params = {
      world::matrix("wide", {25, 61}, {r, s0}),    world::matrix("tall", {61, 24}, {s0, s1}),
      world::matrix("square", {40, 40}, {s1, s0}), world::matrix("row", {1, 33}, {s0, s1}),
      world::matrix("column", {35, 1}, {s0, s0}),  world::matrix("bias", {19}, {s0, s0}),
      world::matrix("scale", {23}, {s0, s0})};
  c.params[1].lr_factor = 0.25;
  c.params[5].role = c.params[6].role = Role::kAdamW;
  c.params[6].lr_factor = 3.0;
  if (!scales_neurons(row)) return c;
  c.params.push_back(world::matrix("stored inputs x outputs", {24, 61}, {s0, s1}));
  c.params.back().transposed = true;
  c.params.push_back(world::matrix("two parts", {30, 20}, {s1, s0}));
  c.params.back().parts = {{"top", {{0, 15}}, whole(20)}, {"bottom", {{15, 30}}, whole(20)}};
  return c;
}

struct Expected {
  reference::Matrix w, m, v;
};

Expected expected_of(const Row& row, const world::Param& p, int64_t index) {
  const auto values = [&](int64_t step) {
    reference::Matrix out(p.shape[0], p.shape.size() > 1 ? p.shape[1] : 1);
    for (int64_t e = 0; e < out.rows * out.cols; ++e)
      out.v[static_cast<size_t>(e)] = static_cast<double>(world::value(index, e, step));
    return p.transposed ? reference::transpose(out) : out;
  };
  const int64_t rows = values(-1).rows, cols = values(-1).cols;
  Expected out = {values(-1), reference::Matrix(rows, cols), reference::Matrix(rows, cols)};
  std::vector<double> moments;
  for (int step = 0; step < kSteps; ++step) {
    const reference::Matrix g = values(step);
    if (p.role == Role::kAdamW) {
      reference::AdamW how = row.adam;
      how.lr = lr_of(p.role, step) * p.lr_factor;
      const int every = row.adamw.update_every;
      if ((step + 1) % every == 0)
        reference::adamw_step(how, (step + 1) / every, out.w.v, out.m.v, out.v.v, g.v);
      continue;
    }
    reference::Muon how = row.how;
    how.lr = lr_of(p.role, step) * p.lr_factor;
    const NormuonAxis axis = row.muon.normuon_axis;
    how.normuon_columns =
        axis == NormuonAxis::kColumns || (axis == NormuonAxis::kLonger && cols > rows);
    how.normuon = axis != NormuonAxis::kOff;
    const bool in_blocks = step % row.muon.blocks.period != 0;
    if (!in_blocks && p.parts.empty()) {
      reference::muon_step(how, out.w, out.m, g, &moments);
      continue;
    }
    // Each block or part is orthogonalized as a separate matrix. The learning rate factor of blocks
    // applies to the update, but not to the decay.
    const reference::Part whole = reference::whole_matrix(rows, cols);
    if (in_blocks) how.scale_times = row.muon.blocks.lr_factor;
    std::vector<std::vector<double>> none;
    reference::muon_step(
        how,
        in_blocks ? reference::cut_into({whole}, row.muon.blocks.rows, row.muon.blocks.cols)
                  : reference::cut_into({whole}, std::ssize(p.parts), 1),
        out.w, out.m, g, none);
  }
  if (p.transposed) {
    out.w = reference::transpose(out.w);
    out.m = reference::transpose(out.m);
  }
  return out;
}

double relative_error(const reference::Matrix& expected, const std::vector<unsigned char>& bytes) {
  double worst = 0, size = 0;
  for (size_t i = 0; i < expected.v.size(); ++i) {
    float x;
    std::memcpy(&x, bytes.data() + 4 * i, 4);
    worst = std::max(worst, std::abs(static_cast<double>(x) - expected.v[i]));
    size = std::max(size, std::abs(expected.v[i]));
  }
  return worst / size;
}

std::vector<double> bf16_values(const std::vector<unsigned char>& bytes) {
  std::vector<double> out(bytes.size() / 2);
  for (size_t i = 0; i < out.size(); ++i) {
    bf16 x;
    std::memcpy(&x, bytes.data() + 2 * i, sizeof x);
    out[i] = static_cast<double>(to_f32(x));
  }
  return out;
}

/// Returns the number of elements of `got` that differ from the elements of `exact` rounded with
/// the random bits. An f32 error can move one in a few hundred elements across a rounding
/// threshold. For these elements, the values on both sides are accepted.
int wrongly_rounded(const std::vector<double>& exact, const std::vector<double>& got, uint64_t seed,
                    uint64_t step, uint32_t param) {
  int wrong = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const uint32_t bits = reference::random_bits(seed, step, param, i);
    const double error = 2e-7 + 2e-6 * std::abs(exact[i]);
    wrong += got[i] < reference::rounded_at_random(exact[i] - error, bits) ||
             got[i] > reference::rounded_at_random(exact[i] + error, bits);
  }
  return wrong;
}

}  // namespace

TEST_CASE(
    "step: Muon and AdamW over four ranks follow the float64 reference, whatever the settings",
    "[unit][optimizer]") {
  for (const Row& row : rows()) {
    const world::Case c = case_of(row);
    const world::Outcome outcome = world::run(c);
    for (size_t i = 0; i < c.params.size(); ++i) {
      INFO(row.name << ", " << c.params[i].name);
      const Expected expected = expected_of(row, c.params[i], static_cast<int64_t>(i));
      // Weights have magnitudes of about one, and a step changes them by at most 0.2 x 0.02 x
      // sqrt(61) x 1.2. The f32 products cause a relative error of a few 1e-6 in this change, after
      // amplification by the coefficients (largest slope about 1e3, eps 6e-8, at most 60 terms).
      // The wrong kind of decay would change weights by at least 1e-3.
      CHECK(relative_error(expected.w, outcome.tensors.params[i]) < 2e-5);
      CHECK(relative_error(expected.m, outcome.tensors.momentum[i]) < 2e-6);
      if (c.params[i].role == Role::kAdamW)
        CHECK(relative_error(expected.v, outcome.tensors.variance[i]) < row.variance_tolerance);
    }
    // There are five whole matrices, and three more if neurons are scaled. In steps that use
    // blocks, three matrices have 2 x 3 blocks, the row has 1 x 3, and the column has 2 x 1.
    const int64_t whole = scales_neurons(row) ? 8 : 5;
    for (int step = 0; step < kSteps; ++step) {
      const StepReport& report = outcome.reports[static_cast<size_t>(step)];
      CHECK(report.planned == (step % row.muon.blocks.period == 0 ? whole : 23));
      CHECK(report.orthogonalized == report.planned);
    }
  }
}

TEST_CASE("step: bf16 weights and momentum round by the bits of seed, step, parameter and element",
          "[unit][optimizer]") {
  const Placement s0{PlacementKind::kShard, 0, 1};
  world::Case c = world::on_mesh({3});
  c.settings.groups = world::default_groups();
  c.settings.groups[0].momentum_dtype = DType::kBF16;
  c.settings.seed = 0x123456789abcdef;
  c.params = {world::matrix("momentum", {20, 24}, {s0}), world::matrix("weights", {500}, {s0})};
  c.params[1].role = Role::kAdamW;
  c.params[1].dtype = DType::kBF16;
  c.params[1].master_kind = MasterKind::kStochastic;
  std::vector<world::Tensors> after;
  for (c.steps = 1; c.steps <= 2; ++c.steps) after.push_back(world::run(c).tensors);

  const auto seed = static_cast<uint64_t>(c.settings.seed);
  const double weight = 1 - c.settings.groups[0].momentum;
  reference::AdamW how;
  how.lr = c.lr;
  std::vector<double> m(480), w(500), mean(500), square(500), gradient(500);
  for (size_t i = 0; i < w.size(); ++i)
    w[i] = static_cast<double>(to_f32(to_bf16(world::value(1, static_cast<int64_t>(i), -1))));
  for (int64_t step = 0; step < 2; ++step) {
    const auto at = static_cast<uint64_t>(step);
    for (size_t i = 0; i < m.size(); ++i)
      m[i] = (1 - weight) * m[i] +
             weight * static_cast<double>(world::value(0, static_cast<int64_t>(i), step));
    for (size_t i = 0; i < w.size(); ++i)
      gradient[i] = static_cast<double>(world::value(1, static_cast<int64_t>(i), step));
    reference::adamw_step(how, step + 1, w, mean, square, gradient);
    const world::Tensors& got = after[static_cast<size_t>(step)];
    CHECK(wrongly_rounded(m, bf16_values(got.momentum[0]), seed ^ reference::kMomentumSeed, at,
                          0) == 0);
    CHECK(wrongly_rounded(w, bf16_values(got.params[1]), seed, at, 1) == 0);
    m = bf16_values(got.momentum[0]);
    w = bf16_values(got.params[1]);
  }
}
