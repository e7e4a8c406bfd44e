#include <catch2/catch.hpp>
#include <cmath>

#include "cuda/scene.hpp"

// Addends and their sums, AdamW of slices, values taken over: the host's bits.

using namespace muonrt;
using namespace cuda_test;

namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};

/// Pieces of one parameter at places in one array, as sums lie.
std::vector<Piece> pieces_of(const Scene& scene, int32_t param) {
  std::vector<Piece> out;
  for (const Piece& p : scene.pieces) {
    if (p.param == param) out.push_back(p);
  }
  return out;
}

Bytes summed_by(std::unique_ptr<Device> device, DType wire, int64_t offset) {
  const Scene scene = make_scene(1);
  Machine machine(std::move(device));
  const std::vector<Piece> pieces = pieces_of(scene, 7);
  constexpr int64_t kNumel = 96 * 136;
  const Bytes red_zone(kNumel * 4, 0x5a);
  auto* sums = reinterpret_cast<float*>(machine.put(red_zone, offset * 4));
  for (uint64_t addend = 0; addend < 3; ++addend) {
    const auto* message =
        machine.put(values(50 + addend, wire, scene.message_elements), offset * size_of(wire));
    machine.ops().accumulate(machine.on(), pieces, sums, {.data = message, .dtype = wire},
                             addend == 0);
  }
  machine.finish();
  return machine.get(reinterpret_cast<unsigned char*>(sums), kNumel * 4);
}

struct Packed {
  Bytes message;
  Findings findings;
};

Packed adamw_by(std::unique_ptr<Device> device, const Scene& scene, DType wire) {
  Machine machine(std::move(device));
  Stage stage(machine, scene);
  auto* message =
      machine.put(Bytes(static_cast<size_t>(scene.message_elements * size_of(wire)), 0x5a));
  auto* findings = machine.put_one(Findings{});
  machine.ops().pack_adamw(machine.on(), scene.pieces, {.params = stage.views, .adam = stage.adam},
                           {.data = message, .dtype = wire}, findings);
  machine.finish();
  return {machine.get(message, scene.message_elements * size_of(wire)), machine.get_one(findings)};
}

std::vector<Bytes> values_by(std::unique_ptr<Device> device, const Scene& scene, DType wire,
                             bool yes) {
  Machine machine(std::move(device));
  Stage stage(machine, scene);
  auto* message = machine.put(values(78, wire, scene.message_elements));
  auto* verdict = machine.put_one(consent(yes));
  machine.ops().commit_values(machine.on(), scene.pieces, stage.views,
                              {.data = message, .dtype = wire},
                              {.sum = verdict, .world = kWorld, .stamp = kStamp});
  machine.finish();
  return stage.state();
}

/// Packs and commits with views that lack the momentum, or the weights.
std::vector<Bytes> lacking_by(std::unique_ptr<Device> device, const Scene& scene, bool weights) {
  Machine machine(std::move(device));
  Stage stage(machine, scene);
  std::vector<ParamView> views = stage.host_views;
  for (ParamView& view : views) {
    if (weights) {
      view.momentum = nullptr;
    } else {
      view.param = nullptr;
      view.master = nullptr;
      view.form = WeightForm::kPlain;
    }
  }
  const auto* table = machine.put(views);
  auto* packed = machine.put(Bytes(static_cast<size_t>(scene.message_elements * 4), 0x5a));
  auto* findings = machine.put_one(Findings{});
  const auto* update = machine.put(values(79, DType::kBF16, scene.message_elements));
  const StepTables tables{.params = table, .groups = stage.groups};
  const Wire message{.data = packed, .dtype = DType::kF32};
  const Verdict verdict{.sum = machine.put_one(consent()), .world = kWorld, .stamp = kStamp};
  if (weights) {
    machine.ops().pack_addend(machine.on(), scene.pieces, table, message, findings);
    machine.ops().commit_update(machine.on(), scene.pieces, tables,
                                {.data = update, .dtype = DType::kBF16}, verdict);
  } else {
    machine.ops().pack_direction(machine.on(), scene.pieces, tables, message, findings);
    machine.ops().commit_momentum(machine.on(), scene.pieces, tables, verdict);
  }
  machine.finish();
  std::vector<Bytes> out = stage.state();
  out.push_back(machine.get(packed, scene.message_elements * 4));
  return out;
}

}  // namespace

TEST_CASE("cuda sum: addends add up to the host's bits at any place", "[cuda]") {
  for (const DType wire : kDTypes) {
    for (const int64_t offset : {0, 1}) {
      const Bytes expected = summed_by(make_host(), wire, offset);
      CHECK(difference(summed_by(make_device(true), wire, offset), expected) == -1);
    }
  }
}

TEST_CASE("cuda sum: AdamW's values have the host's bits, and are looked at", "[cuda]") {
  Scene scene = make_scene(8);
  for (const DType wire : kDTypes) {
    const Packed expected = adamw_by(make_host(), scene, wire);
    const Packed got = adamw_by(make_device(true), scene, wire);
    CHECK(difference(got.message, expected.message) == -1);
    CHECK(got.findings.nonfinite == 0);
  }
  scene.set_grad(3, 20000, 1e25f);  // its square is beyond f32
  const Packed got = adamw_by(make_device(true), scene, DType::kF32);
  CHECK(got.findings.nonfinite == 1);
  CHECK(got.findings.first_param == 3);
}

TEST_CASE("cuda sum: values are taken over where the ballots pass, by the host's bits", "[cuda]") {
  const Scene scene = make_scene(9);
  for (const DType wire : kDTypes) {
    const auto expected = values_by(make_host(), scene, wire, true);
    const auto before = values_by(make_host(), scene, wire, false);
    CHECK(difference(before, expected) >= 0);
    CHECK(difference(values_by(make_device(true), scene, wire, true), expected) == -1);
    CHECK(difference(values_by(make_device(true), scene, wire, false), before) == -1);
  }
}

TEST_CASE("cuda commit: views without momentum or without weights have the host's bits", "[cuda]") {
  const Scene scene = make_scene(10);
  for (const bool weights : {false, true}) {
    const auto expected = lacking_by(make_host(), scene, weights);
    CHECK(difference(lacking_by(make_device(true), scene, weights), expected) == -1);
  }
}
