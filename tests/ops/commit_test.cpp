#include <catch2/catch.hpp>
#include <cmath>

#include "ops/fixture.hpp"

// Tests the commit ops that end a step, and the vote that they read.

using namespace muonrt;
using namespace ops_test;

namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};

/// Selects the op that commits. kHalves calls the op for the momentum, then the op for the update.
/// kUpdate uses views without momentum, and kMomentum uses views without weights. kAdamW commits
/// every second parameter as a whole, and the other parameters block by block.
enum class Verb { kMuon, kHalves, kUpdate, kMomentum, kAdamW, kValues };
constexpr Verb kVerbs[] = {Verb::kMuon,     Verb::kHalves, Verb::kUpdate,
                           Verb::kMomentum, Verb::kAdamW,  Verb::kValues};

Fixture fixture_for(Verb verb, bool forms, uint64_t seed) {
  Fixture out = forms ? make_fixture_of_forms(seed) : make_fixture(seed);
  if (verb == Verb::kAdamW) use_f32_momentum(out);
  for (FixtureParam& param : out.params)
    if (verb == Verb::kValues && param.form == WeightForm::kStochastic)
      param.form = WeightForm::kRemainder;
  return out;
}

void commit_adamw(Machine& machine, const OnMachine& on, const StepTables& tables,
                  const CommitCondition& condition) {
  std::vector<int32_t> list;
  std::vector<ShardBlock> blocks;
  for (const int32_t p : all_params(on.fixture))
    if (p % 2) list.push_back(p);
  for (const ShardBlock& block : on.fixture.blocks)
    if (block.param % 2 == 0) blocks.push_back(block);
  machine.ops().commit_adamw(machine.on(), list, blocks, tables, condition);
  machine.finish();
}

/// Returns all arrays of the parameters after a commit, and the Findings.
Results committed(Machine& machine, const Fixture& fixture, Verb verb, DType wire,
                  const Vote& sum) {
  OnMachine on(machine, fixture);
  if (verb == Verb::kUpdate) on.leave_out_momentum();
  if (verb == Verb::kMomentum) on.leave_out_weights();
  const auto& blocks = fixture.blocks;
  const StepTables tables{.params = on.views, .groups = on.groups, .adam = on.adam};
  const ConstTypedBuffer message{.data = machine.put(values(77, wire, fixture.message_elements)),
                                 .dtype = wire};
  auto* findings = machine.put_one(Findings{});
  const CommitCondition condition{.sum = machine.put_one(sum),
                                  .world = kWorld,
                                  .fingerprint = kFingerprint,
                                  .findings = findings};
  if (verb == Verb::kMuon)
    machine.ops().commit_muon(machine.on(), blocks, tables, message, condition);
  if (verb == Verb::kHalves || verb == Verb::kMomentum)
    machine.ops().commit_momentum(machine.on(), blocks, tables, condition);
  if (verb == Verb::kHalves || verb == Verb::kUpdate)
    machine.ops().commit_update(machine.on(), blocks, tables, message, condition);
  if (verb == Verb::kAdamW) commit_adamw(machine, on, tables, condition);
  if (verb == Verb::kValues)
    machine.ops().commit_values(machine.on(), blocks, on.views, message, condition);
  machine.finish();
  Results out = on.state();
  out.push_back(bytes_of(machine, findings));
  return out;
}

/// Returns one array of a parameter from the results of `committed`.
enum Array { kParam, kGrad, kMaster, kMomentum, kRemainder, kVariance, kArrays };
const Bytes& array(const Results& results, size_t param, Array which) {
  return results[param * kArrays + which];
}

}  // namespace

TEST_CASE("commit: weights of all forms and state have the bits of the formulas", "[ops][tsan]") {
  for (const bool forms : {false, true}) {
    for (const Verb verb : kVerbs) {
      const Fixture fixture = fixture_for(verb, forms, 4);
      for (const DType wire : kDTypes) {
        if (verb == Verb::kAdamW && wire != DType::kF32) continue;  // AdamW ignores `wire`
        CAPTURE(forms, static_cast<int>(verb), name_of(wire));
        const Run run = [&](Machine& machine) {
          return committed(machine, fixture, verb, wire, consent());
        };
        const Results expected = of_reference(run);
        CHECK(difference(expected, of_reference([&](Machine& machine) {
                           return committed(machine, fixture, verb, wire, Vote{});
                         })) >= 0);
        check_everywhere(expected, run);
      }
    }
  }
}

TEST_CASE("commit: Muon's momentum and weights are within four roundings of float64", "[ops]") {
  const Fixture fixture = make_fixture(5);
  const Results got = of_reference([&](Machine& machine) {
    return committed(machine, fixture, Verb::kMuon, DType::kBF16, consent());
  });
  const Bytes update = values(77, DType::kBF16, fixture.message_elements);
  int64_t wrong = 0;
  for (const ShardBlock& block : fixture.blocks) {
    const auto p = static_cast<size_t>(block.param);
    const FixtureParam& param = fixture.params[p];
    const MuonScalars& s = fixture.groups[static_cast<size_t>(param.group)];
    for (int64_t i = 0; i < block.rows * block.cols && param.active; ++i) {
      const int64_t at = block.local_offset + i / block.cols * block.local_ld + i % block.cols;
      const double g =
          static_cast<double>(s.grad_scale) * value_in(fixture.grad[p], param.grad_dtype, at);
      const double m =
          s.momentum * static_cast<double>(value_in(fixture.momentum[p], DType::kF32, at)) +
          (s.heavy_ball ? 1.0 : 1.0 - static_cast<double>(s.momentum)) * g;
      const double old = param.master ? value_in(fixture.master[p], DType::kF32, at)
                                      : value_in(fixture.data[p], param.dtype, at);
      const double w = old * (1 - static_cast<double>(s.decay) * block.decay_scale) -
                       static_cast<double>(s.rate) * block.update_scale *
                           value_in(update, DType::kBF16, block.packed_offset + i);
      const double bound = 4 * 0x1p-24;  // 4 roundings of values below 2
      wrong += !(std::fabs(value_in(array(got, p, kMomentum), DType::kF32, at) - m) <= bound);
      const float kept = value_in(array(got, p, kParam), param.dtype, at);
      if (param.master) {
        const float master = value_in(array(got, p, kMaster), DType::kF32, at);
        wrong += !(std::fabs(master - w) <= bound);
        wrong += kept != (param.dtype == DType::kF32 ? master : to_f32(to_bf16(master)));
      } else {
        const double rounding = param.dtype == DType::kF32 ? 0 : 0x1p-8 * std::fabs(w);
        wrong += !(std::fabs(kept - w) <= bound + 1.001 * rounding);
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("commit: AdamW's moments and weights agree with float64, with eps outside the root",
          "[ops]") {
  Fixture fixture = make_fixture(7);
  for (AdamScalars& s : fixture.adam) s.eps = 1e-3f;
  const Results got = of_reference([&](Machine& machine) {
    return committed(machine, fixture, Verb::kAdamW, DType::kF32, consent());
  });
  int64_t wrong = 0;
  for (size_t p = 0; p < fixture.params.size(); ++p) {
    const FixtureParam& param = fixture.params[p];
    const AdamScalars& s = fixture.adam[p];
    const double b1 = s.beta1, b2 = s.beta2;
    for (int64_t i = 0; i < param.rows * param.cols && param.active; ++i) {
      const double g =
          static_cast<double>(s.grad_scale) * value_in(fixture.grad[p], param.grad_dtype, i);
      const double m = b1 * value_in(fixture.momentum[p], DType::kF32, i) + (1 - b1) * g;
      const double v = b2 * value_in(fixture.variance[p], DType::kF32, i) + (1 - b2) * g * g;
      const double old = param.master ? value_in(fixture.master[p], DType::kF32, i)
                                      : value_in(fixture.data[p], param.dtype, i);
      const double step = static_cast<double>(s.rate) * (m * s.correction1) /
                          (std::sqrt(v * s.correction2) + s.eps);
      const double w = old * (1 - static_cast<double>(s.decay)) - step;
      const double bound = 4 * 0x1p-24 + 16 * 0x1p-24 * std::fabs(step);
      wrong += !(std::fabs(value_in(array(got, p, kMomentum), DType::kF32, i) - m) <= 4 * 0x1p-24);
      wrong += !(std::fabs(value_in(array(got, p, kVariance), DType::kF32, i) - v) <= 4 * 0x1p-24);
      const double rounding = param.dtype == DType::kF32 ? 0 : 0x1p-8 * std::fabs(w);
      const double kept = param.master ? value_in(array(got, p, kMaster), DType::kF32, i)
                                       : value_in(array(got, p, kParam), param.dtype, i);
      wrong += !(std::fabs(kept - w) <= bound + (param.master ? 0 : 1.001 * rounding));
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("commit: momentum and AdamW's weights equal the values in messages", "[ops]") {
  // Without Nesterov momentum, the direction in f32 equals the new momentum, so the message
  // contains the new momentum.
  Fixture fixture = make_small_fixture(6);
  for (MuonScalars& s : fixture.groups) s.nesterov = 0;
  for (const Verb verb : {Verb::kMomentum, Verb::kAdamW}) {
    Machine machine(make_reference());
    OnMachine on(machine, fixture);
    const StepTables tables{.params = on.views, .groups = on.groups, .adam = on.adam};
    auto* message = machine.put(std::vector<float>(static_cast<size_t>(fixture.message_elements)));
    const TypedBuffer wire{.data = message, .dtype = DType::kF32};
    auto* findings = machine.put_one(Findings{});
    if (verb == Verb::kMomentum)
      machine.ops().pack_direction(machine.on(), fixture.blocks, tables, wire, findings);
    else
      machine.ops().pack_adamw(machine.on(), fixture.blocks, tables, wire, findings);
    machine.finish();
    const Results after = of_reference(
        [&](Machine& m) { return committed(m, fixture, verb, DType::kF32, consent()); });
    const Bytes& written = array(after, 2, verb == Verb::kMomentum ? kMomentum : kParam);
    CHECK(difference(written, bytes_of(machine, message, 35)) == -1);
  }
}

TEST_CASE("commit: AdamW updates every element of a long list once", "[ops]") {
  // The scalars below are chosen so that a step adds 1 to every weight.
  constexpr int64_t kCount = 700, kLongest = 9000;
  const auto numel = [](int64_t i) { return i % 100 == 3 ? kLongest : i % 5; };
  int64_t total = 0;
  for (int64_t i = 0; i < kCount; ++i) total += numel(i);
  const std::vector<float> zero(static_cast<size_t>(total)), one(zero.size(), 1.0f);
  AdamScalars scalars;
  scalars.beta1 = scalars.beta2 = scalars.eps = 0.0f;
  scalars.rate = -1.0f;
  for (const Subject& subject : subjects()) {
    INFO(subject.name);
    Machine machine(subject.make());
    auto *weights = machine.put(zero), *first = machine.put(zero), *second = machine.put(zero);
    auto* grads = machine.put(one);
    std::vector<ParamView> views;
    std::vector<int32_t> list;
    int64_t at = 0;
    for (int64_t i = 0; i < kCount; at += numel(i++)) {
      ParamView view;
      view.param = weights + at;
      view.grad = grads + at;
      view.momentum = first + at;
      view.variance = second + at;
      view.numel = numel(i);
      views.push_back(view);
      list.push_back(static_cast<int32_t>(kCount - 1 - i));
    }
    machine.ops().commit_adamw(
        machine.on(), list, {}, {.params = machine.put(views), .adam = machine.put_one(scalars)},
        {.sum = machine.put_one(consent()), .world = kWorld, .fingerprint = kFingerprint});
    machine.finish();
    CHECK((machine.get(weights, total) == one));
  }
}

TEST_CASE("commit: nothing is written unless all ranks accept the same fingerprint", "[ops]") {
  std::vector<Vote> rejected(7, consent());
  rejected[0] = rejecting_vote_sum();
  rejected[1] = Vote{};
  rejected[2].consent -= 1;
  rejected[3].consent += 2;
  rejected[4].fingerprint += 1;
  rejected[5].gradient_replicas = -1;
  rejected[6].weight_replicas = 1;
  for (const Verb verb : kVerbs) {
    const Fixture fixture = fixture_for(verb, false, 9);
    Machine machine(make_reference());
    Results before = OnMachine(machine, fixture).state();
    before.push_back(bytes_of(std::vector<Findings>(1)));
    for (const Vote& sum : rejected) {
      CAPTURE(static_cast<int>(verb), &sum - rejected.data());
      check_everywhere(before,
                       [&](Machine& m) { return committed(m, fixture, verb, DType::kBF16, sum); });
    }
  }
}

TEST_CASE("vote: contains the findings and the state of the rank", "[ops]") {
  const Run run = [](Machine& machine) {
    Results out;
    for (const bool local_ok : {false, true}) {
      for (const int64_t nonfinite : {0, 1}) {
        Findings found;
        found.nonfinite = nonfinite;
        found.first_param = nonfinite ? 3 : -1;
        found.zero_matrices = 5;
        found.factor = 0x12345678;
        found.gradient_replicas = -6;
        found.weight_replicas = int64_t{7} << 40;
        auto* findings = machine.put_one(found);
        auto* vote = machine.put_one(rejecting_vote_sum());
        machine.ops().cast_vote(machine.on(), vote, findings, kFingerprint, 11, local_ok);
        machine.finish();
        out.push_back(bytes_of(machine, vote));
      }
    }
    auto* stale = machine.put_one(Findings{.nonfinite = 1, .first_stale = 0});
    auto* vote = machine.put_one(rejecting_vote_sum());
    machine.ops().cast_vote(machine.on(), vote, stale, kFingerprint, 11, true);
    machine.finish();
    out.push_back(bytes_of(machine, vote));
    return out;
  };
  const Results expected = of_host(run);
  for (size_t i = 0; i < 4; ++i) {
    const auto vote = value_of<Vote>(expected[i]);
    CHECK(vote.consent == (i == 2));
    CHECK(vote.nonfinite == (i == 3));
    CHECK(vote.fingerprint == kFingerprint);
    CHECK(vote.orthogonalized == 11);
    CHECK(vote.zero_matrices == 5);
    CHECK(vote.gradient_replicas == -6);
    CHECK(vote.weight_replicas == int64_t{7} << 40);
  }
  CHECK(value_of<Vote>(expected[4]).consent == 0);
  CHECK(value_of<Vote>(expected[4]).nonfinite == 0);
  check_everywhere(expected, run);
}
