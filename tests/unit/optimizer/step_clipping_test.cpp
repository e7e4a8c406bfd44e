#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/clipping.hpp"
#include "support/attempts.hpp"
#include "support/bits_cases.hpp"
#include "support/rank_check.hpp"

// Tests gradient factors in device memory, and clipping by the global norm.

using namespace muonrt;

namespace {

constexpr int kSteps = 3;

world::Case make_case() {
  world::Case c = bits::make({.mesh = 5, .scheme = 1, .window = 2}, false, kSteps);
  c.settings.groups[1].adamw_eps = 0.1;  // so that AdamW depends on the magnitude of gradients
  c.settings.groups[0].momentum_kind = MomentumKind::kHeavyBall;
  return c;
}

/// Returns the norm of the gradients of a step, in float64.
double norm_of_step(const world::Case& c, size_t step) {
  double sum = 0;
  for (size_t i = 0; i < c.params.size(); ++i) {
    const auto out =
        step < c.inactive_params.size() ? c.inactive_params[step] : std::vector<int64_t>{};
    if (std::find(out.begin(), out.end(), static_cast<int64_t>(i)) != out.end()) continue;
    int64_t numel = 1;
    for (const int64_t n : c.params[i].shape) numel *= n;
    for (int64_t e = 0; e < numel; ++e)
      sum += std::pow(
          static_cast<double>(world::value(static_cast<int64_t>(i), e, static_cast<int64_t>(step))),
          2);
  }
  return std::sqrt(sum);
}

}  // namespace

TEST_CASE("clipping: the sum of squares is exact in any order and for any size",
          "[unit][backend][clipping]") {
  const auto norm = [](std::vector<float> x) {
    std::vector<int64_t> forward(kNormWords), backward(kNormWords);
    for (size_t i = 0; i < x.size(); ++i) {
      const SquareTerm a = square_term(x[i]), b = square_term(x[x.size() - 1 - i]);
      forward[static_cast<size_t>(a.word)] += a.low;
      forward[static_cast<size_t>(a.word) + 1] += a.high;
      backward[static_cast<size_t>(b.word)] += b.low;
      backward[static_cast<size_t>(b.word) + 1] += b.high;
    }
    CHECK(forward == backward);
    return norm_of(forward.data());
  };
  CHECK(norm({}) == 0.0);
  CHECK(norm({3.0f, -4.0f}) == 5.0);
  CHECK(norm({std::numeric_limits<float>::denorm_min()}) == 0x1p-149);
  CHECK(norm({3e38f, -2e38f}) == Approx(std::hypot(3e38, 2e38)).epsilon(1e-6));
  CHECK(norm({1e30f, 1.0f, 1e-30f}) == Approx(1e30));
  std::vector<float> many(10007);
  double sum = 0;
  for (size_t i = 0; i < many.size(); ++i) {
    many[i] = world::value(1, static_cast<int64_t>(i), 2) * static_cast<float>(1 << (i % 20));
    sum += static_cast<double>(many[i]) * static_cast<double>(many[i]);
  }
  CHECK(norm(many) == Approx(std::sqrt(sum)).epsilon(1e-12));
}

TEST_CASE("clipping: factors in device memory have the same effect as the argument",
          "[unit][optimizer][clipping]") {
  world::Case by_value = make_case(), by_pointer = make_case();
  by_value.arguments = [](StepArgs& s, int64_t, int) { s.grad_scale_inv = 0x1p-12; };
  static const float kInverse = 0x1p-8f, kMultiplier = 0x1p-3f, kNone = 0.0f;
  by_pointer.arguments = [](StepArgs& s, int64_t, int) {
    s.grad_scale_inv = 0.5;
    s.device_grad_scale_inv = &kInverse;
    s.grad_multiplier = &kMultiplier;
    s.found_inf = &kNone;
  };
  CHECK((world::run(by_value).tensors == world::run(by_pointer).tensors));
  CHECK_FALSE((world::run(by_value).tensors == world::run(make_case()).tensors));
}

TEST_CASE(
    "clipping: an infinity that one rank found, or a factor that is not finite, skips the step "
    "everywhere and changes no bit",
    "[unit][optimizer][clipping]") {
  static const float kFound = 1.0f, kNan = std::nanf(""), kHuge = 3e38f;
  for (const int kind : {0, 1, 2, 3}) {
    world::Case c = make_case();
    c.settings.clip_norm = kind == 3 ? 1.0 : 0.0;
    c.arguments = [&](StepArgs& s, int64_t step, int rank) {
      if (step != 1) return;
      if (kind == 0 && rank == 2) s.found_inf = &kFound;
      if (kind == 1 && rank == 0) s.found_inf = &kNan;
      if (kind == 2) {
        s.device_grad_scale_inv = &kHuge;
        s.grad_multiplier = &kHuge;
      }
      if (kind == 3) s.grad_multiplier = &kNan;
    };
    const auto ends = world::on_each(c, [](world::Rank& rank, Comm&) {
      StepReport report;
      RANK_CHECK(rank.step(0, report) == Status::kOk);
      const world::Ended end = world::attempt(rank, 1);
      RANK_CHECK(rank.step(2, report) == Status::kOk);
      return end;
    });
    for (const world::Ended& end : ends) {
      CHECK(end.status == Status::kSkipped);
      CHECK(end.unchanged);
      CHECK(end.report.step == 1);
    }
  }
}

TEST_CASE(
    "clipping: a factor in device memory that differs between ranks is a mismatch and changes no "
    "bit",
    "[unit][optimizer][clipping]") {
  static const float kMine = 0.25f, kOther = 0.2500001f, kOne = 1.0f;
  for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
    for (const bool multiplier : {false, true}) {
      world::Case c = make_case();
      c.settings.commit = commit;
      c.arguments = [&](StepArgs& s, int64_t step, int rank) {
        if (step == 0 && rank == 1) s.grad_multiplier = &kOne;  // a factor of 1 has no effect
        if (step != 1) return;
        (multiplier ? s.grad_multiplier : s.device_grad_scale_inv) = rank == 1 ? &kOther : &kMine;
      };
      const auto ends = world::on_each(c, [](world::Rank& rank, Comm&) {
        StepReport report;
        RANK_CHECK(rank.step(0, report) == Status::kOk);
        const world::Ended end = world::attempt(rank, 1);
        RANK_CHECK(rank.step(2, report) == Status::kOk);
        return end;
      });
      for (const world::Ended& end : ends) {
        CHECK(end.status == Status::kMismatch);
        CHECK_THAT(end.message, Catch::Contains("grad_multiplier") && Catch::Contains("0.25"));
        CHECK(end.unchanged);
      }
    }
  }
}

TEST_CASE("clipping: every gradient is multiplied by the quotient of the norms",
          "[unit][optimizer][clipping]") {
  world::Case c = make_case();
  c.settings.clip_norm = 7.5;
  const world::Outcome clipped = world::run(c);
  world::Case by_hand = make_case();
  by_hand.arguments = [&](StepArgs& s, int64_t step, int) {
    const double norm = norm_of_step(by_hand, static_cast<size_t>(step));
    s.grad_scale_inv = static_cast<float>(7.5 / norm);
  };
  const world::Outcome expected = world::run(by_hand);
  for (size_t step = 0; step < kSteps; ++step)
    CHECK(clipped.reports[step].grad_norm == Approx(norm_of_step(c, step)).epsilon(1e-13));
  CHECK((clipped.tensors == expected.tensors));
  // If the norm is below the bound, clipping has no effect.
  c.settings.clip_norm = 1e6;
  CHECK((world::run(c).tensors == world::run(make_case()).tensors));
}

TEST_CASE("clipping: a gradient of AdamW counts in the steps between its updates, too",
          "[unit][optimizer][clipping]") {
  const Placement partial{PlacementKind::kPartial, 0, 1};
  for (const bool partial_grads : {false, true}) {
    INFO("partial gradients " << partial_grads);
    world::Case c = world::on_mesh({2});
    c.settings.groups = world::default_groups();
    c.settings.groups[1].update_every = 2;
    // Clipping is not supported with partial gradients.
    c.settings.clip_norm = partial_grads ? 0.0 : 1e3;
    for (const char* name : {"matrix", "table"}) {
      const Placement how = partial_grads ? partial : Placement{PlacementKind::kShard, 0, 1};
      world::add(c, name, {12, 8}, {how}).partial_grads = partial_grads ? 2 : 0;
    }
    c.params[1].role = Role::kAdamW;
    world::on_each(c, [&](world::Rank& rank, Comm& comm) {
      rank.fill_gradients(0);
      const float bad = std::nanf("");
      if (comm.rank() == 1) std::memcpy(rank.grad(1).data() + 20, &bad, 4);
      const world::Ended end = world::attempt_only(rank, 0);
      RANK_CHECK(end.status == Status::kSkipped && end.unchanged);
      RANK_CHECK(end.report.nonfinite_rank == 1 && end.report.nonfinite_param == 1);
      RANK_CHECK(end.report.step == 0);
      StepReport report;
      RANK_CHECK(rank.step(0, report) == Status::kOk);
      if (!partial_grads) RANK_CHECK(report.grad_norm == Approx(norm_of_step(c, 0)).epsilon(1e-13));
    });
  }
}
