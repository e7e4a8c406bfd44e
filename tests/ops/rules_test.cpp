#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "ops/fixture.hpp"
#include "reference/reference.hpp"

// Tests the ops of NorMuon, gradient clipping and QK-clip.

using namespace muonrt;
using namespace ops_test;

namespace {

/// The layout of a batch, and one letter for each matrix: 'r' if the neurons are rows, 'c' if they
/// are columns, 'i' if the parameter is inactive, '-' if the matrix has no moments.
struct NormedCase {
  int64_t rows, cols, ld;
  DType dtype;
  std::string kinds;
};

NormuonState put_state(Machine& machine, uint64_t seed, int64_t neurons) {
  Bytes moments = values(seed, DType::kF32, neurons);
  for (int64_t i = 0; i < neurons; ++i)
    set_value(moments, DType::kF32, i, std::abs(value_in(moments, DType::kF32, i)));
  const Bytes none(static_cast<size_t>(neurons * 4));
  NormuonState state;
  state.moments = reinterpret_cast<float*>(machine.put(moments));
  state.staged = reinterpret_cast<float*>(machine.put(none));
  state.factors = reinterpret_cast<float*>(machine.put(none));
  state.neurons = neurons;
  return state;
}

/// Returns the matrices, and for each matrix its factors, its staged moments and its committed
/// moments.
Results normed(Machine& machine, const NormedCase& c) {
  const int64_t count = std::ssize(c.kinds), stride = c.rows * c.ld;
  auto* data = machine.put(values(5, c.dtype, count * stride));
  std::vector<NormuonState> states;
  for (const char kind : c.kinds) {
    const bool by_rows = kind != 'c';
    NormuonState state;
    if (kind != '-') state = put_state(machine, 6 + states.size(), by_rows ? c.rows : c.cols);
    state.stored_rows = by_rows;
    state.param = kind == 'i';
    states.push_back(state);
  }
  ParamView views[2];
  views[0].active = true;
  views[1].active = false;
  MuonScalars group;
  group.normuon_beta2 = 0.9f;
  auto* put_views = machine.put(std::vector<ParamView>(views, views + 2));
  machine.ops().normuon(machine.on(), {data, c.dtype, c.rows, c.cols, c.ld, count, stride}, states,
                        {.params = put_views, .groups = machine.put_one(group)});
  machine.ops().commit_normuon(
      machine.on(), states, put_views,
      {.sum = machine.put_one(consent()), .world = kWorld, .fingerprint = kFingerprint});
  machine.finish();
  Results out = {machine.get(data, count * stride * size_of(c.dtype))};
  for (const NormuonState& state : states)
    for (const float* at : {state.factors, state.staged, state.moments})
      if (at) out.push_back(bytes_of(machine, at, state.neurons));
  return out;
}

void check_normed(const NormedCase& c) {
  CAPTURE(name_of(c.dtype), c.rows, c.cols, c.ld, c.kinds);
  const Run run = [&](Machine& machine) { return normed(machine, c); };
  check_everywhere(of_host(run), run);
}

/// Returns the factor in every table, the exact sum of squares, the norm and the Findings.
Results clipped(Machine& machine, const Fixture& fixture, float found_inf, double limit) {
  OnMachine on(machine, fixture);
  auto* sums = machine.put(std::vector<int64_t>(kNormWords));
  auto* findings = machine.put_one(Findings{});
  auto* norm = machine.put_one(0.0);
  GradientFactors factors;
  factors.host = 0.5f;
  factors.inverse_scale = machine.put_one(0.25f);
  factors.multiplier = machine.put_one(3.0f);
  factors.found_inf = machine.put_one(found_inf);
  const auto params = std::ssize(fixture.params), groups = std::ssize(fixture.groups);
  const std::vector<int32_t> list = all_params(fixture);
  machine.ops().sum_squares(machine.on(), list, on.views, sums);
  machine.ops().scale_gradients(machine.on(), factors, {.norm = limit, .sums = sums},
                                {on.views, params, on.groups, groups, on.adam, params}, findings,
                                norm);
  machine.finish();
  std::vector<float> scales;
  for (const ParamView& view : machine.get(on.views, params)) scales.push_back(view.grad_scale);
  for (const AdamScalars& s : machine.get(on.adam, params)) scales.push_back(s.grad_scale);
  for (const MuonScalars& s : machine.get(on.groups, groups)) scales.push_back(s.grad_scale);
  return {bytes_of(scales), bytes_of(machine, sums, kNormWords), bytes_of(machine, norm),
          bytes_of(machine, findings)};
}

}  // namespace

TEST_CASE("normuon: moments, factors and matrices have the same bits on every backend",
          "[ops][tsan]") {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [rows, cols, ld] : {std::tuple<int64_t, int64_t, int64_t>(7, 5, 8),
                                         {33, 300, 303},
                                         {1, 40, 43},
                                         {70, 31, 34},
                                         {33, 300, 304},
                                         {1, 40, 40},
                                         {70, 532, 544},
                                         {140, 72, 72}})
      for (const char* const kinds : {"r", "c", "i", "r-cir"})
        check_normed({rows, cols, ld, dtype, kinds});
  }
  // The cases have more neurons than a thread block processes at a time, or more matrices than a
  // launch processes.
  check_normed({2100, 8, 8, DType::kBF16, "r"});
  check_normed({4, 2100, 2104, DType::kBF16, "c"});
  check_normed({3, 16, 16, DType::kBF16, std::string(130, 'r')});
}

TEST_CASE("normuon: matrices and moments agree with float64 up to the roundings of f32 sums",
          "[ops]") {
  const NormedCase c{33, 300, 303, DType::kF32, "r-cir"};
  const Results got = of_host([&](Machine& machine) { return normed(machine, c); });
  const int64_t stride = c.rows * c.ld;
  const Bytes content = values(5, c.dtype, std::ssize(c.kinds) * stride);
  // Each matrix with moments has three more arrays: factors, staged moments and committed moments.
  size_t array = 1;
  for (int64_t k = 0; k < std::ssize(c.kinds); ++k) {
    const char kind = c.kinds[static_cast<size_t>(k)];
    reference::Matrix x(c.rows, c.cols);
    for (int64_t i = 0; i < c.rows * c.cols; ++i)
      x.v[static_cast<size_t>(i)] =
          value_in(content, c.dtype, k * stride + i / c.cols * c.ld + i % c.cols);
    std::vector<double> moments;
    if (kind == 'c') x = reference::transpose(x);
    const Bytes before = values(static_cast<uint64_t>(6 + k), DType::kF32, x.rows);
    for (int64_t i = 0; i < x.rows; ++i)
      moments.push_back(std::fabs(value_in(before, DType::kF32, i)));
    if (kind == 'r' || kind == 'c') x = reference::normuon(x, static_cast<double>(0.9f), moments);
    if (kind == 'c') x = reference::transpose(x);
    const auto near = [](float found, double expected) {
      return std::fabs(static_cast<double>(found) - expected) <= 32 * 0x1p-24 * std::fabs(expected);
    };
    int64_t wrong = 0;
    for (int64_t i = 0; i < c.rows * c.cols; ++i)
      wrong += !near(value_in(got[0], c.dtype, k * stride + i / c.cols * c.ld + i % c.cols),
                     x.v[static_cast<size_t>(i)]);
    if (kind != '-') array += 3;
    for (size_t i = 0; kind != '-' && i < moments.size(); ++i)
      wrong += !near(value_in(got[array - 1], DType::kF32, static_cast<int64_t>(i)), moments[i]);
    CAPTURE(kind);
    CHECK(wrong == 0);
  }
}

TEST_CASE("normuon: without updates moments become exactly zero", "[ops]") {
  constexpr float kLeastNormal = std::numeric_limits<float>::min();
  std::vector<float> moments, expected;
  for (int i = 0; i < 5; ++i) {
    moments.push_back(kLeastNormal * (1.0f + static_cast<float>(i) / 32));
    const float next = 0.9f * moments.back();
    expected.push_back(next < kLeastNormal ? 0.0f : next);
  }
  REQUIRE(expected[0] == 0.0f);
  REQUIRE(expected[4] > 0.0f);
  for (const Subject& subject : subjects()) {
    INFO(subject.name);
    Machine machine(subject.make());
    NormuonState state = put_state(machine, 1, 5);
    state.moments = machine.put(moments);
    state.stored_rows = true;
    MuonScalars group;
    group.normuon_beta2 = 0.9f;
    const std::vector<NormuonState> states = {state};
    machine.ops().normuon(
        machine.on(), {machine.put(std::vector<float>(80)), DType::kF32, 5, 16, 16, 1, 80}, states,
        {.params = machine.put_one(ParamView{}), .groups = machine.put_one(group)});
    machine.finish();
    CHECK(machine.get(state.staged, 5) == expected);
  }
}

TEST_CASE("clipping: the exact sum of squares and the factor in every table", "[ops][tsan]") {
  const Fixture fixture = make_fixture(12);
  double squares = 0;
  for (size_t p = 0; p < fixture.params.size(); ++p) {
    const FixtureParam& param = fixture.params[p];
    for (int64_t i = 0; param.active && i < param.rows * param.cols; ++i)
      squares += std::pow(static_cast<double>(value_in(fixture.grad[p], param.grad_dtype, i)), 2);
  }
  const double norm = std::sqrt(squares);
  for (const bool found_inf : {false, true}) {
    for (const double limit : {0.0, 1.5}) {
      CAPTURE(found_inf, limit);
      const Run run = [&](Machine& machine) {
        return clipped(machine, fixture, found_inf ? 1.0f : 0.0f, limit);
      };
      const Results expected = of_host(run);
      CHECK(value_of<Findings>(expected[3]).nonfinite == found_inf);
      const double factor = static_cast<double>(value_of<float>(expected[0]));
      // The multiplier of 3 applies to clipped gradients, but is not part of the norm.
      CHECK(value_of<double>(expected[2]) == Approx(limit > 0 ? 0.125 * norm : 0.0));
      CHECK(factor == Approx(3 * (limit > 0 ? limit / norm : 0.125)));
      check_everywhere(expected, run);
    }
  }
}

TEST_CASE("qk-clip: row factors, and a logit that is not finite is noted", "[ops][tsan]") {
  const auto factors = [](Machine& machine, QkKind kind, float bad) {
    QkClip clip;
    clip.kind = kind;
    clip.heads = 6;
    clip.kv_heads = 3;
    clip.head_dim = 50;
    clip.nope = 40;
    clip.rope = 20;
    clip.v_dim = 30;
    clip.rows = kind == QkKind::kQuery         ? 300
                : kind == QkKind::kKey         ? 150
                : kind == QkKind::kMlaQuery    ? 360
                : kind == QkKind::kMlaKeyValue ? 210
                                               : 600;
    const std::vector<float> logits = {50, 400, 100, 900, bad, 101};
    auto* taken = machine.put(std::vector<float>(6));
    machine.ops().take_logits(machine.on(), machine.put(logits), taken, 6);
    clip.logits = taken;
    clip.selected = machine.put(std::vector<int32_t>{1, 1, 0, 1, 1, 1});
    clip.factors = machine.put(std::vector<float>(static_cast<size_t>(clip.rows)));
    auto* findings = machine.put_one(Findings{});
    machine.ops().clip_heads(machine.on(), clip, findings);
    machine.finish();
    return Results{bytes_of(machine, findings), bytes_of(machine, clip.factors, clip.rows)};
  };
  for (const QkKind kind : {QkKind::kQuery, QkKind::kKey, QkKind::kMlaQuery, QkKind::kMlaKeyValue,
                            QkKind::kQkv, QkKind::kQkvBlocks}) {
    for (const float bad : {-HUGE_VALF, HUGE_VALF, std::nanf("")}) {
      CAPTURE(static_cast<int>(kind), bad);
      const bool well = bad == -HUGE_VALF;
      const Run run = [&](Machine& machine) {
        Results out = factors(machine, kind, bad);
        if (!well) out.pop_back();  // the step is skipped, so its factors are undefined
        return out;
      };
      const Results expected = of_host(run);
      const auto found = value_of<Findings>(expected[0]);
      CHECK(found.nonfinite == (well ? 0 : 1));
      CHECK(found.first_param == -1);  // the value may come from any parameter of the layer
      float least = well ? 1.0f : 0.0f;
      for (int64_t i = 0; well && 4 * i < std::ssize(expected[1]); ++i)
        least = std::min(least, value_in(expected[1], DType::kF32, i));
      CHECK(least < 0.5f);
      check_everywhere(expected, run);
    }
  }
}
