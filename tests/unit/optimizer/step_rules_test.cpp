#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "support/bits_cases.hpp"
#include "support/rank_check.hpp"
#include "support/world.hpp"
#include "textbook/textbook.hpp"

// The rules of a step that are settings: kinds of decay, AdamW's forms, rates of their own, what a
// weight is stored as. Whole steps over ranks against the float64 textbook, and the same bits on
// every mesh.

using namespace muonrt;

namespace {

constexpr int kSteps = 4;

std::vector<float> floats(const std::vector<unsigned char>& bytes) {
  std::vector<float> out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

double relative_error(const textbook::Matrix& expected, const std::vector<unsigned char>& bytes) {
  const auto found = floats(bytes);
  double worst = 0, size = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(found[i]) - expected.v[i]));
    size = std::max(size, std::abs(expected.v[i]));
  }
  return worst / size;
}

textbook::Matrix values(int64_t param, int64_t rows, int64_t cols, int64_t step) {
  textbook::Matrix out(rows, cols);
  for (int64_t e = 0; e < rows * cols; ++e)
    out.v[static_cast<size_t>(e)] = static_cast<double>(world::value(param, e, step));
  return out;
}

/// Two matrices (the second with a rate of its own) and two vectors over 2 x 2 ranks.
world::Case make_case() {
  world::Case c;
  c.mesh = {2, 2};
  c.world = 4;
  c.steps = kSteps;
  c.settings.transport = DType::kF32;
  c.settings.groups = world::default_groups();
  const Placement s0{PlacementKind::kShard, 0, 1}, s1{PlacementKind::kShard, 1, 1};
  const auto add = [&](const char* name, std::vector<int64_t> shape, Role role, double factor) {
    world::Param p;
    p.name = name;
    p.shape = std::move(shape);
    p.role = role;
    p.lr_factor = factor;
    p.placements = {s0, p.shape.size() > 1 ? s1 : s0};
    c.params.push_back(std::move(p));
  };
  add("wide", {24, 60}, Role::kMuon, 1.0);
  add("tall", {61, 24}, Role::kMuon, 0.25);
  add("bias", {19}, Role::kAdamW, 1.0);
  add("scale", {23}, Role::kAdamW, 3.0);
  return c;
}

struct Kind {
  WeightDecayKind kind;
  textbook::Decay decay;
  double weight_decay;
};
const Kind kKinds[] = {
    {WeightDecayKind::kDecoupled, textbook::Decay::kDecoupled, 0.5},
    {WeightDecayKind::kIndependent, textbook::Decay::kIndependent, 0.01},
    {WeightDecayKind::kLrSquared, textbook::Decay::kLrSquared, 20.0},
    {WeightDecayKind::kCautious, textbook::Decay::kCautious, 0.5},
};

}  // namespace

TEST_CASE("step rules: every kind of decay, with rates of their own, follows the textbook",
          "[unit][optimizer][rules]") {
  for (const Kind& kind : kKinds) {
    INFO("weight decay kind " << static_cast<int>(kind.kind));
    world::Case c = make_case();
    for (GroupSettings& g : c.settings.groups) {
      g.weight_decay_kind = kind.kind;
      g.weight_decay = kind.weight_decay;
    }
    // Each group has a schedule of its own.
    const auto lr_of = [](Role role, int64_t step) {
      return role == Role::kMuon ? 0.02 / static_cast<double>(step + 1) : 0.05;
    };
    c.lr = std::numeric_limits<double>::quiet_NaN();
    c.arguments = [&](StepSettings& s, int64_t step, int) {
      s.group_lrs = {lr_of(Role::kMuon, step), lr_of(Role::kAdamW, step)};
    };
    const world::Outcome outcome = world::run(c);
    for (size_t i = 0; i < c.params.size(); ++i) {
      const world::Param& p = c.params[i];
      INFO(p.name);
      const auto index = static_cast<int64_t>(i);
      const int64_t rows = p.shape[0], cols = p.shape.size() > 1 ? p.shape[1] : 1;
      textbook::Matrix w = values(index, rows, cols, -1), m(rows, cols), v(rows, cols);
      for (int step = 0; step < kSteps; ++step) {
        const textbook::Matrix g = values(index, rows, cols, step);
        if (p.role == Role::kMuon) {
          textbook::Muon how;
          how.lr = lr_of(p.role, step) * p.lr_factor;
          how.weight_decay = kind.weight_decay;
          how.decay = kind.decay;
          how.list = textbook::lists::kPolarModded;
          how.safety = 1.02;
          textbook::muon_step(how, w, m, g);
        } else {
          textbook::AdamW how;
          how.lr = lr_of(p.role, step) * p.lr_factor;
          how.weight_decay = kind.weight_decay;
          how.decay = kind.decay;
          textbook::adamw_step(how, step + 1, w.v, m.v, v.v, g.v);
        }
      }
      // As in step_textbook_test.cpp. A decay of another kind would move weights by 1e-3 at least.
      CHECK(relative_error(w, outcome.tensors.params[i]) < 2e-5);
    }
  }
}

TEST_CASE("step rules: cautious decay acts where the update is zero", "[unit][optimizer][rules]") {
  world::Case c = make_case();
  c.params.resize(1);
  c.world = 1;
  c.mesh = {1};
  c.params[0].placements.clear();
  c.settings.groups[0].weight_decay_kind = WeightDecayKind::kCautious;
  world::on_ranks(1, [&](Comm& comm) {
    world::Rank rank(c, comm);
    const auto before = floats(rank.data(0));
    StepReport report;
    std::fill(rank.grad(0).begin(), rank.grad(0).end(), static_cast<unsigned char>(0));
    REQUIRE(rank.step_only(0, report) == Status::kOk);
    const auto after = floats(rank.data(0));
    const float kept = 1.0f - static_cast<float>(0.02 * 0.1);
    for (size_t i = 0; i < after.size(); ++i) REQUIRE(after[i] == before[i] * kept);
  });
}

TEST_CASE("step rules: AdamW in the folded form, and at every third step, follows the textbook",
          "[unit][optimizer][rules]") {
  for (const bool folded : {false, true}) {
    for (const int every : {1, 3}) {
      world::Case c = make_case();
      c.steps = 8;
      GroupSettings& group = c.settings.groups[1];
      group.adam_form = folded ? AdamForm::kFolded : AdamForm::kTorch;
      group.update_every = every;
      group.eps = 0.05;  // so large that its place matters
      group.beta1 = 0.8;
      group.beta2 = 0.9;
      const world::Outcome outcome = world::run(c);
      for (const size_t i : {size_t{2}, size_t{3}}) {
        const int64_t n = c.params[i].shape[0];
        const auto index = static_cast<int64_t>(i);
        textbook::Matrix w = values(index, n, 1, -1), m(n, 1), v(n, 1);
        textbook::AdamW how;
        how.lr = c.lr * c.params[i].lr_factor;
        how.folded = folded;
        how.eps = 0.05;
        how.beta1 = 0.8;
        how.beta2 = 0.9;
        int64_t updates = 0;
        for (int step = every - 1; step < c.steps; step += every)
          textbook::adamw_step(how, ++updates, w.v, m.v, v.v, values(index, n, 1, step).v);
        CHECK(relative_error(w, outcome.tensors.params[i]) < 2e-6);
        CHECK(relative_error(v, outcome.tensors.variance[i]) < 2e-6);
      }
    }
  }
}

TEST_CASE("step rules: a gradient that is not read at this step may be missing",
          "[unit][optimizer][rules]") {
  world::Case c = make_case();
  c.settings.groups[1].update_every = 2;
  world::on_ranks(c.world, [&](Comm& comm) {
    world::Rank rank(c, comm);
    StepReport report;
    rank.optimizer().set_grad(2, nullptr);
    RANK_CHECK(rank.step(0, report) == Status::kOk);
    RANK_CHECK_THROWS_AS(rank.step(1, report), Error);
  });
}

TEST_CASE("step rules: a remainder is a master weight without the copy, over 1,000 small steps",
          "[unit][optimizer][rules]") {
  world::Case master = make_case();
  for (auto& p : master.params) {
    p.dtype = DType::kBF16;
    p.master_kind = MasterKind::kOwned;
  }
  master.lr = 1e-6;
  world::Case split = master;
  for (auto& p : split.params) p.master_kind = MasterKind::kRemainder;
  world::on_ranks(1, [&](Comm& comm) {
    const auto alone = [](world::Case c) {
      c.world = 1;
      c.mesh = {1};
      for (auto& p : c.params) p.placements.clear();
      return c;
    };
    const world::Case of_a = alone(master), of_b = alone(split);
    world::Rank a(of_a, comm), b(of_b, comm);
    StepReport report;
    const auto start = b.data(0);
    for (int step = 0; step < 1000; ++step) {
      a.step(step % 7, report);
      b.step(step % 7, report);
    }
    CHECK(b.data(0) != start);
    for (int64_t i = 0; i < 4; ++i) {
      const auto wide = floats(a.state(i, StateKind::kMaster));
      const auto low = b.state(i, StateKind::kRemainder);
      int64_t ties = 0;
      for (size_t e = 0; e < wide.size(); ++e) {
        uint16_t high, rest, rounded;
        std::memcpy(&high, b.data(i).data() + 2 * e, 2);
        std::memcpy(&rest, low.data() + 2 * e, 2);
        std::memcpy(&rounded, a.data(i).data() + 2 * e, 2);
        const uint32_t joined = (uint32_t{high} << 16) + rest - (rest & 0x8000u ? 0x10000u : 0u);
        uint32_t bits;
        std::memcpy(&bits, &wide[e], 4);
        REQUIRE(joined == bits);
        ties += high != rounded;
        if (high != rounded) REQUIRE(rest == 0x8000u);
      }
      CHECK(ties <= 2);
      CHECK(a.state(i, StateKind::kMomentum) == b.state(i, StateKind::kMomentum));
    }
  });
}

TEST_CASE("step rules: weights rounded at random follow what f32 weights do, without bias",
          "[unit][optimizer][rules]") {
  // The same gradient at every step moves AdamW's weights by the rate: 1e-4 of weights near 1, far
  // below half a step of bf16 (2e-3), so that rounding to nearest would not move them at all.
  world::Case c;
  c.settings.groups = world::default_groups();
  c.settings.groups[1].weight_decay = 0;
  c.lr = 1e-4;
  world::Param p;
  p.name = "w";
  p.role = Role::kAdamW;
  p.shape = {64, 64};
  p.dtype = DType::kBF16;
  p.master_kind = MasterKind::kStochastic;
  c.params = {p};
  world::on_ranks(1, [&](Comm& comm) {
    world::Rank rank(c, comm);
    for (size_t e = 0; e < 4096; ++e) {
      const uint16_t one_and_a_half = 0x3fc0;
      std::memcpy(rank.data(0).data() + 2 * e, &one_and_a_half, 2);
    }
    rank.fill_gradients(0);
    std::vector<float> grad(4096, 1.0f);
    std::memcpy(rank.grad(0).data(), grad.data(), 4 * grad.size());
    StepReport report;
    for (int step = 0; step < 100; ++step) rank.step_only(step, report);
    double mean = 0;
    for (size_t e = 0; e < 4096; ++e) {
      uint16_t bits;
      std::memcpy(&bits, rank.data(0).data() + 2 * e, 2);
      mean += static_cast<double>(to_f32(bf16{bits})) / 4096;
    }
    // Each of 4096 x 100 roundings errs by at most half a step of bf16 (2^-8): the mean's standard
    // deviation is below sqrt(100 / 4096) x 2^-8 = 6e-4; it has moved by 1e-2.
    CHECK(std::abs(mean - (1.5 - 0.01)) < 6e-4 * 3);
  });
}

namespace {

void same_on_meshes(const std::function<void(world::Case&)>& change) {
  const auto prepared = [&](const bits::Factors& f) {
    world::Case c = bits::make(f, true, kSteps);
    if (c.settings.groups.empty()) c.settings.groups = world::default_groups();
    change(c);
    return c;
  };
  const auto reference = world::run(prepared({})).tensors;
  for (const bits::Factors& f : {bits::Factors{.mesh = 5, .scheme = 1, .window = 2, .threads = 2},
                                 {.mesh = 3, .window = 1, .chunk = 1, .commit = 1},
                                 {.mesh = 9, .scheme = 5},
                                 {.mesh = 10, .scheme = 3, .chunk = 1, .threads = 2},
                                 {.mesh = 8, .scheme = 2, .window = 4, .commit = 1}}) {
    const world::Case c = prepared(f);
    INFO(c.describe());
    CHECK((world::run(c).tensors == reference));
  }
}

}  // namespace

TEST_CASE("step rules: same bits with remainders, random rounding and bf16 momentum",
          "[bits][rules]") {
  for (const MasterKind kind :
       {MasterKind::kNone, MasterKind::kRemainder, MasterKind::kStochastic}) {
    for (const DType momentum : {DType::kF32, DType::kBF16}) {
      same_on_meshes([&](world::Case& c) {
        c.settings.seed = 20261120;
        c.settings.groups[0].momentum_dtype = momentum;
        for (size_t i = 0; i < c.params.size(); ++i) {
          c.params[i].dtype = DType::kBF16;
          c.params[i].master_kind = kind;
          c.params[i].lr_factor = i % 2 ? 0.5 : 1.0;
        }
      });
    }
  }
}

TEST_CASE("step rules: same bits with every kind of decay, folded AdamW and skipped steps",
          "[bits][rules]") {
  for (const Kind& kind : kKinds) {
    same_on_meshes([&](world::Case& c) {
      for (GroupSettings& g : c.settings.groups) {
        g.weight_decay_kind = kind.kind;
        g.weight_decay = kind.weight_decay;
      }
      c.settings.groups[1].adam_form = AdamForm::kFolded;
      c.settings.groups[1].update_every = 2;
    });
  }
}
