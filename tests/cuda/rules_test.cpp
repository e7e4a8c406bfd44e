#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "cuda/scene.hpp"

// Forms of weights, clipping, NorMuon and QK-clip: the host's bits.

using namespace muonrt;
using namespace cuda_test;

namespace {

std::vector<Bytes> committed_by(std::unique_ptr<Device> device, const Scene& scene,
                                DType transport) {
  Machine machine(std::move(device));
  Stage stage(machine, scene);
  auto* message = machine.put(values(77, transport, scene.message_elements));
  machine.ops().commit_muon(machine.on(), scene.pieces,
                            {.params = stage.views, .groups = stage.groups},
                            {.data = message, .dtype = transport},
                            {.sum = machine.put_one(consent()), .world = kWorld, .stamp = kStamp});
  machine.finish();
  return stage.state();
}

/// AdamW of every second parameter whole, of the others by pieces.
std::vector<Bytes> adam_by(std::unique_ptr<Device> device, Scene scene) {
  for (size_t p = 0; p < scene.params.size(); ++p) {
    if (scene.params[p].momentum_dtype == DType::kF32) continue;
    scene.params[p].momentum_dtype = DType::kF32;
    scene.momentum[p] = values(p, DType::kF32, scene.params[p].rows * scene.params[p].cols);
  }
  Machine machine(std::move(device));
  Stage stage(machine, scene);
  std::vector<int32_t> list;
  std::vector<Piece> pieces;
  for (size_t p = 0; p < scene.params.size(); ++p) {
    if (p % 2) list.push_back(static_cast<int32_t>(p));
  }
  for (const Piece& piece : scene.pieces) {
    if (piece.param % 2 == 0) pieces.push_back(piece);
  }
  machine.ops().commit_adamw(machine.on(), list, pieces,
                             {.params = stage.views, .adam = stage.adam},
                             {.sum = machine.put_one(consent()), .world = kWorld, .stamp = kStamp});
  machine.finish();
  return stage.state();
}

struct Normed {
  Bytes matrices;
  std::vector<Bytes> moments;  // factors, staged and committed ones of each
  bool operator==(const Normed&) const = default;
};

/// How a batch lies, and what becomes of each matrix: 'r' and 'c' by rows and columns, 'i' of an
/// inactive parameter, '-' without moments.
struct NormedCase {
  int64_t rows, cols, ld;
  DType dtype;
  std::string kinds;
};

NormuonState put_state(Machine& machine, uint64_t seed, int64_t lines) {
  Bytes moments = values(seed, DType::kF32, lines);
  for (int64_t i = 0; i < lines; ++i)
    set_value(moments, DType::kF32, i, std::abs(value_in(moments, DType::kF32, i)));
  const Bytes none(static_cast<size_t>(lines * 4));
  NormuonState state;
  state.moments = reinterpret_cast<float*>(machine.put(moments));
  state.staged = reinterpret_cast<float*>(machine.put(none));
  state.factors = reinterpret_cast<float*>(machine.put(none));
  state.lines = lines;
  return state;
}

Normed normed_by(std::unique_ptr<Device> device, const NormedCase& c) {
  Machine machine(std::move(device));
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
      {.sum = machine.put_one(consent()), .world = kWorld, .stamp = kStamp});
  machine.finish();
  Normed normed{machine.get(data, count * stride * size_of(c.dtype)), {}};
  for (const NormuonState& state : states)
    for (const float* at : {state.factors, state.staged, state.moments})
      if (at) {
        normed.moments.push_back(
            machine.get(reinterpret_cast<const Bytes::value_type*>(at), state.lines * 4));
      }
  return normed;
}

}  // namespace

TEST_CASE(
    "cuda commit: remainders, random rounding, bf16 momentum and row factors have the host's "
    "bits",
    "[cuda]") {
  const Scene scene = make_scene_of_forms(11);
  for (const DType transport : {DType::kF32, DType::kBF16})
    CHECK(difference(committed_by(make_device(true), scene, transport),
                     committed_by(make_host(), scene, transport)) == -1);
  CHECK(difference(adam_by(make_device(true), scene), adam_by(make_host(), scene)) == -1);
}

TEST_CASE("cuda normuon: moments, factors and the matrix have the host's bits", "[cuda]") {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [rows, cols, ld] : {std::tuple<int64_t, int64_t, int64_t>(7, 5, 8),
                                         {33, 300, 303},
                                         {1, 40, 43},
                                         {70, 31, 34},
                                         {33, 300, 304},
                                         {1, 40, 40},
                                         {70, 532, 544},
                                         {140, 72, 72}}) {
      CAPTURE(name_of(dtype), rows, cols, ld);
      for (const char* const kinds : {"r", "c", "i", "r-cir"}) {
        const NormedCase c{rows, cols, ld, dtype, kinds};
        CHECK((normed_by(make_device(true), c) == normed_by(make_host(), c)));
      }
    }
  }
  // More lines than a block has at once, more matrices than a launch takes.
  for (const NormedCase& c :
       {NormedCase{2100, 8, 8, DType::kBF16, "r"}, NormedCase{4, 2100, 2104, DType::kBF16, "c"},
        NormedCase{3, 16, 16, DType::kBF16, std::string(130, 'r')}})
    CHECK((normed_by(make_device(true), c) == normed_by(make_host(), c)));
}

TEST_CASE("cuda clipping: the exact sum of squares and the factor in every table are the host's",
          "[cuda]") {
  const Scene scene = make_scene(12);
  const auto run = [&](std::unique_ptr<Device> device) {
    Machine machine(std::move(device));
    Stage stage(machine, scene);
    std::vector<int32_t> list;
    for (size_t p = 0; p < scene.params.size(); ++p) list.push_back(static_cast<int32_t>(p));
    auto* sums = machine.put(std::vector<int64_t>(kNormWords));
    auto* findings = machine.put_one(Findings{});
    auto* norm = machine.put_one(0.0);
    GradientFactors factors;
    factors.host = 0.5f;
    factors.inverse_scale = machine.put_one(0.25f);
    factors.multiplier = machine.put_one(3.0f);
    factors.found_inf = machine.put_one(0.0f);
    const auto params = static_cast<int64_t>(scene.params.size());
    machine.ops().sum_squares(machine.on(), list, stage.views, sums);
    machine.ops().scale_gradients(machine.on(), factors, {.norm = 1.5, .sums = sums},
                                  {stage.views, params, stage.groups,
                                   static_cast<int64_t>(scene.groups.size()), stage.adam, params},
                                  findings, norm);
    machine.finish();
    std::vector<float> found;
    for (const ParamView& view : machine.get(stage.views, params)) found.push_back(view.grad_scale);
    for (const AdamScalars& s : machine.get(stage.adam, params)) found.push_back(s.grad_scale);
    for (const MuonScalars& s :
         machine.get(stage.groups, static_cast<int64_t>(scene.groups.size())))
      found.push_back(s.grad_scale);
    CHECK(machine.get_one(findings).nonfinite == 0);
    factors.found_inf = machine.put_one(1.0f);
    machine.ops().scale_gradients(machine.on(), factors, {.norm = 0.0, .sums = sums},
                                  {stage.views, params, stage.groups,
                                   static_cast<int64_t>(scene.groups.size()), stage.adam, params},
                                  findings, norm);
    const double first_norm = machine.get_one(norm);
    CHECK(first_norm == 0.0);
    CHECK(machine.get_one(findings).nonfinite == 1);
    return std::pair(machine.get(sums, kNormWords), found);
  };
  const auto host = run(make_host());
  CHECK((run(make_device(true)) == host));
  CHECK(host.second.front() > 0.0f);
}

TEST_CASE("cuda qk-clip: row factors are the host's, and a bad logit is noted", "[cuda]") {
  const auto run = [&](std::unique_ptr<Device> device, QkKind kind, float bad) {
    Machine machine(std::move(device));
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
    const Findings found = machine.get_one(findings);
    CHECK(found.nonfinite == (bad > 0 || std::isnan(bad) ? 1 : 0));
    CHECK(found.first_param == -1);  // of all that the layer holds
    return machine.get(clip.factors, clip.rows);
  };
  for (const QkKind kind :
       {QkKind::kQuery, QkKind::kKey, QkKind::kMlaQuery, QkKind::kMlaKeyValue, QkKind::kQkv}) {
    const auto host = run(make_host(), kind, -HUGE_VALF);
    CHECK((run(make_device(true), kind, -HUGE_VALF) == host));
    CHECK(*std::min_element(host.begin(), host.end()) < 0.5f);
    run(make_device(true), kind, HUGE_VALF);
    run(make_device(true), kind, std::nanf(""));
  }
}
