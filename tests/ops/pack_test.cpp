#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "ops/fixture.hpp"

// Tests the ops that pack directions, partial gradients or values of AdamW into messages, and the
// op that adds partial gradients.

using namespace muonrt;
using namespace ops_test;

namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr unsigned char kRedZone = 0x5a;

enum class Verb { kDirection, kGradient, kAdamW };
constexpr Verb kVerbs[] = {Verb::kDirection, Verb::kGradient, Verb::kAdamW};

void pack(Machine& machine, OnMachine& on, Verb verb, TypedBuffer message, Findings* findings) {
  const auto& blocks = on.fixture.blocks;
  const StepTables tables{.params = on.views, .groups = on.groups, .adam = on.adam};
  if (verb == Verb::kDirection)
    machine.ops().pack_direction(machine.on(), blocks, tables, message, findings);
  if (verb == Verb::kGradient)
    machine.ops().pack_partial_grad(machine.on(), blocks, on.views, message, findings);
  if (verb == Verb::kAdamW)
    machine.ops().pack_adamw(machine.on(), blocks, tables, message, findings);
  machine.finish();
}

/// Returns the Findings, the message including its gaps, and all input arrays.
Results packed(Machine& machine, const Fixture& fixture, Verb verb, DType wire, int64_t offset) {
  OnMachine on(machine, fixture);
  const int64_t bytes = fixture.message_elements * size_of(wire);
  auto* message = machine.put(Bytes(static_cast<size_t>(bytes), kRedZone), offset * size_of(wire));
  auto* findings = machine.put_one(Findings{});
  if (verb == Verb::kDirection) on.leave_out_weights();
  if (verb == Verb::kGradient) on.leave_out_momentum();
  pack(machine, on, verb, {.data = message, .dtype = wire}, findings);
  Results out = on.state();
  out.insert(out.begin(), {bytes_of(machine, findings), machine.get(message, bytes)});
  return out;
}

Findings found(const Results& results) { return value_of<Findings>(results[0]); }

}  // namespace

TEST_CASE(
    "pack: every element of a message is correct at every alignment, and nothing else changes",
    "[ops][tsan]") {
  for (const bool forms : {false, true}) {
    for (const Verb verb : kVerbs) {
      Fixture fixture = forms ? make_fixture_of_forms(1) : make_fixture(1);
      if (verb == Verb::kAdamW) use_f32_momentum(fixture);
      for (const DType wire : kDTypes) {
        for (const int64_t offset : {0, 1, 8}) {
          CAPTURE(forms, static_cast<int>(verb), name_of(wire), offset);
          const Run run = [&](Machine& machine) {
            return packed(machine, fixture, verb, wire, offset);
          };
          const Results expected = of_reference(run);
          CHECK(found(expected).nonfinite == 0);
          check_everywhere(expected, run);
        }
      }
    }
  }
}

TEST_CASE("pack: a direction is within five roundings of float64", "[ops]") {
  const Fixture fixture = make_fixture(2);
  const Bytes message = of_reference([&](Machine& machine) {
    return packed(machine, fixture, Verb::kDirection, DType::kF32, 0);
  })[1];
  double worst = 0;
  for (const ShardBlock& block : fixture.blocks) {
    const auto p = static_cast<size_t>(block.param);
    const FixtureParam& param = fixture.params[p];
    const MuonScalars& s = fixture.groups[static_cast<size_t>(param.group)];
    const double mu = s.momentum;
    for (int64_t i = 0; i < block.rows * block.cols; ++i) {
      const int64_t at = block.local_offset + i / block.cols * block.local_ld + i % block.cols;
      const double g =
          static_cast<double>(s.grad_scale) * value_in(fixture.grad[p], param.grad_dtype, at);
      const double fresh = (s.heavy_ball ? 1.0 : 1.0 - mu) * g;
      const double next = mu * value_in(fixture.momentum[p], DType::kF32, at) + fresh;
      const double expected = !param.active ? 0 : s.nesterov ? fresh + mu * next : next;
      const double got = value_in(message, DType::kF32, block.packed_offset + i);
      worst = std::max(worst, std::fabs(got - expected));
    }
  }
  CHECK(worst <= 5 * 0x1p-23);  // 5 roundings of values below 4
}

TEST_CASE("pack: a value that is not finite is noted with its parameter, wherever it is", "[ops]") {
  struct Poisoned {
    Verb verb;
    bool momentum;  // true: the value is in the momentum; false: in the gradient
    float value;
  };
  const float nan = std::nanf("");
  for (const Poisoned& bad : {Poisoned{Verb::kDirection, false, kInf},
                              {Verb::kDirection, false, nan},
                              {Verb::kDirection, true, -kInf},
                              {Verb::kGradient, false, -kInf},
                              {Verb::kGradient, false, nan},
                              {Verb::kAdamW, false, kInf},
                              {Verb::kAdamW, false, nan}}) {
    const Fixture fixture = make_small_fixture(3);
    const auto noted = [&](Machine& machine, size_t param) {
      OnMachine on(machine, fixture);
      TypedBuffer message{
          .data = machine.put(Bytes(static_cast<size_t>(fixture.message_elements * 2))),
          .dtype = DType::kBF16};
      std::vector<Findings> out;
      for (int64_t i = 0; i < 35; ++i) {
        Bytes poisoned = bad.momentum ? fixture.momentum[param] : fixture.grad[param];
        set_value(poisoned, DType::kF32, i, bad.value);
        const ParamView& view = on.host_views[param];
        machine.ops().copy(machine.on(),
                           bad.momentum ? view.momentum : const_cast<void*>(view.grad),
                           machine.put(poisoned), std::ssize(poisoned));
        auto* findings = machine.put_one(Findings{});
        pack(machine, on, bad.verb, message, findings);
        out.push_back(machine.get_one(findings));
      }
      return out;
    };
    for (const size_t param : {size_t{1}, size_t{2}}) {
      CAPTURE(static_cast<int>(bad.verb), bad.momentum, bad.value, param);
      const Run run = [&](Machine& machine) { return Results{bytes_of(noted(machine, param))}; };
      Machine reference(make_reference());
      const auto expected = noted(reference, param);
      for (int64_t i = 0; i < 35; ++i) {
        const bool read = param == 2 || i % 7 != 0;  // column 0 of parameter 1 is in no block
        CHECK(expected[static_cast<size_t>(i)].nonfinite == read);
        CHECK(expected[static_cast<size_t>(i)].first_param ==
              (read ? static_cast<int64_t>(param) : -1));
      }
      check_everywhere({bytes_of(expected)}, run);
    }
  }
}

TEST_CASE("pack: the lowest active parameter with a value that is not finite is noted", "[ops]") {
  for (const auto& [param, element, lowest] :
       {std::tuple<size_t, int64_t, int64_t>(0, 19199, 0), {3, 20000, 3}, {6, 0, 6}, {4, 5, -1}}) {
    Fixture fixture = make_fixture(4);
    fixture.set_grad(param, element, -kInf);
    if (lowest >= 0) fixture.set_grad(7, 0, std::nanf(""));
    for (const Verb verb : kVerbs) {
      CAPTURE(param, static_cast<int>(verb));
      const Run run = [&](Machine& machine) {
        return Results{packed(machine, fixture, verb, DType::kF32, 0)[0]};
      };
      const Results expected = of_reference(run);
      CHECK(found(expected).nonfinite == (lowest >= 0));
      CHECK(found(expected).first_param == lowest);
      check_everywhere(expected, run);
    }
  }
}

TEST_CASE("pack: a finite gradient that overflows is noted", "[ops]") {
  struct Overflow {
    Verb verb;
    float gradient, scale;
    DType wire;
    bool noted, in_f32;
  };
  for (const Overflow& c : {Overflow{Verb::kDirection, 3.4e38f, 1, DType::kF32, false, false},
                            {Verb::kDirection, 3.4e38f, 1, DType::kBF16, true, false},
                            {Verb::kDirection, 1e36f, 1e3f, DType::kF32, true, true},
                            {Verb::kGradient, 3.4e38f, 1, DType::kF32, false, false},
                            {Verb::kGradient, 3.4e38f, 1, DType::kBF16, true, true},
                            {Verb::kAdamW, 1e18f, 1, DType::kF32, false, false},
                            {Verb::kAdamW, 1e25f, 1, DType::kF32, true, true}}) {
    CAPTURE(static_cast<int>(c.verb), c.gradient, c.scale, name_of(c.wire));
    Fixture fixture = make_fixture(5);
    fixture.groups[0].momentum = 0.0f;
    fixture.groups[0].nesterov = 0;
    fixture.groups[0].grad_scale = c.scale;
    fixture.set_grad(0, 7, c.gradient);
    const Run run = [&](Machine& machine) {
      return Results{packed(machine, fixture, c.verb, c.wire, 0)[0]};
    };
    const Results expected = of_reference(run);
    CHECK(found(expected).first_param == (c.noted ? 0 : -1));
    CHECK(found(expected).first_in_f32 == (c.in_f32 ? 0 : -1));
    check_everywhere(expected, run);
  }
}

TEST_CASE("pack: an unknown dtype is an error", "[ops]") {
  Fixture fixture = make_small_fixture(6);
  Machine machine(make_host());
  OnMachine on(machine, fixture);
  on.host_views[0].grad_dtype = DType::kF16;
  on.views = machine.put(on.host_views);
  auto* message = machine.put(Bytes(static_cast<size_t>(fixture.message_elements * 4)));
  CHECK_THROWS_AS(pack(machine, on, Verb::kDirection, {.data = message, .dtype = DType::kF32},
                       machine.put_one(Findings{})),
                  Error);
  CHECK(machine.device->error()->status() == Status::kNotSupported);
}

TEST_CASE("accumulate: partial gradients are added in f32, one after the other, at any alignment",
          "[ops][tsan]") {
  const Fixture fixture = make_fixture(7);
  constexpr int64_t kParam = 7, kNumel = 96 * 136;
  std::vector<ShardBlock> blocks;
  for (const ShardBlock& p : fixture.blocks)
    if (p.param == kParam) blocks.push_back(p);
  for (const DType wire : kDTypes) {
    for (const int64_t offset : {0, 1}) {
      const Run run = [&](Machine& machine) {
        auto* sums = reinterpret_cast<float*>(machine.put(Bytes(kNumel * 4, kRedZone), offset * 4));
        for (uint64_t rank = 0; rank < 3; ++rank) {
          const auto* message = machine.put(values(50 + rank, wire, fixture.message_elements),
                                            offset * size_of(wire));
          machine.ops().accumulate(machine.on(), blocks, sums, {.data = message, .dtype = wire},
                                   rank == 0);
        }
        machine.finish();
        return Results{bytes_of(machine, sums, kNumel)};
      };
      check_everywhere(of_reference(run), run);
    }
  }
}
