#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "cuda/scene.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};
constexpr unsigned char kRedZone = 0x5a;

Bytes message_of(const Scene& scene, DType transport) {
  return Bytes(static_cast<size_t>(scene.message_elements * size_of(transport)), kRedZone);
}

struct Packed {
  Bytes message;
  Findings findings;
};

Packed packed_by(std::unique_ptr<Device> device, const Scene& scene, DType transport,
                 int64_t offset) {
  Machine machine(std::move(device));
  Stage stage(machine, scene);
  auto* message = machine.put(message_of(scene, transport), offset * size_of(transport));
  auto* findings = machine.put_one(Findings{});
  machine.ops().pack_direction(machine.on(), scene.pieces,
                               {.params = stage.views, .groups = stage.groups},
                               {.data = message, .dtype = transport}, findings);
  machine.finish();
  return {machine.get(message, scene.message_elements * size_of(transport)),
          machine.get_one(findings)};
}

bool same(const Findings& a, const Findings& b) {
  return a.nonfinite == b.nonfinite && a.first_param == b.first_param &&
         a.zero_matrices == b.zero_matrices;
}

std::vector<int32_t> all_params(const Scene& scene) {
  std::vector<int32_t> list;
  for (size_t i = 0; i < scene.params.size(); ++i) list.push_back(static_cast<int32_t>(i));
  return list;
}

std::vector<Bytes> committed_by(std::unique_ptr<Device> device, const Scene& scene, DType transport,
                                const Ballot& sum, bool adamw) {
  Machine machine(std::move(device));
  Stage stage(machine, scene);
  const Bytes update = values(77, transport, scene.message_elements);
  auto* message = machine.put(update);
  auto* verdict = machine.put_one(sum);
  const auto list = all_params(scene);
  if (adamw) {
    machine.ops().commit_adamw(machine.on(), list, {}, {.params = stage.views, .adam = stage.adam},
                               {.sum = verdict, .world = kWorld, .stamp = kStamp});
  } else {
    machine.ops().commit_muon(
        machine.on(), scene.pieces, {.params = stage.views, .groups = stage.groups},
        {.data = message, .dtype = transport}, {.sum = verdict, .world = kWorld, .stamp = kStamp});
  }
  machine.finish();
  return stage.state();
}

}  // namespace

TEST_CASE("cuda pack: the message has the host's bits for all dtypes, places and alignments",
          "[cuda]") {
  const Scene scene = make_scene(1);
  for (const DType transport : kDTypes) {
    for (const int64_t offset : {0, 1, 8}) {
      const Packed expected = packed_by(make_host(), scene, transport, offset);
      const Packed got = packed_by(make_device(true), scene, transport, offset);
      CHECK(difference(got.message, expected.message) == -1);
      CHECK(same(got.findings, expected.findings));
      CHECK(got.findings.nonfinite == 0);
    }
  }
}

TEST_CASE("cuda pack: a value that is not finite is noted with its lowest parameter", "[cuda]") {
  const float inf = std::numeric_limits<float>::infinity();
  // Parameter 4 sits out: nothing of it is read.
  for (const auto& [param, element, found] :
       {std::tuple<size_t, int64_t, int64_t>(0, 19199, 0), {3, 20000, 3}, {6, 0, 6}, {4, 5, -1}}) {
    Scene scene = make_scene(2);
    scene.set_grad(param, element, -inf);
    scene.set_grad(7, 0, found < 0 ? 0.5f : std::nanf(""));
    for (const DType transport : kDTypes) {
      const Packed got = packed_by(make_device(true), scene, transport, 0);
      CHECK(got.findings.nonfinite == (found < 0 ? 0 : 1));
      CHECK(got.findings.first_param == found);
      CHECK(same(got.findings, packed_by(make_host(), scene, transport, 0).findings));
    }
  }
}

TEST_CASE("cuda pack: a direction too large for the message's dtype is noted", "[cuda]") {
  Scene scene = make_scene(3);
  // The momentum's share brings the direction to 3.4e38, which bf16 rounds to infinity.
  scene.groups[0].momentum = 0.0f;
  scene.groups[0].nesterov = 0;
  scene.set_grad(0, 7, 3.4e38f);
  CHECK(packed_by(make_device(true), scene, DType::kF32, 0).findings.nonfinite == 0);
  CHECK(packed_by(make_device(true), scene, DType::kBF16, 0).findings.first_param == 0);
}

TEST_CASE("cuda scan: finds what a list of many parameters of all sizes holds", "[cuda]") {
  // More parameters than a block has threads, some empty, some longer than a part.
  Machine machine(make_device(true));
  constexpr int64_t kCount = 600;
  std::vector<ParamView> views;
  std::vector<int32_t> list;
  // All gradients are parts of two arrays, one for each dtype.
  constexpr int64_t kLongest = 21000;
  const auto* full = machine.put(values(1, DType::kF32, kLongest));
  const auto* half = machine.put(values(1, DType::kBF16, kLongest));
  for (int64_t i = 0; i < kCount; ++i) {
    ParamView view;
    view.grad_dtype = i % 2 ? DType::kBF16 : DType::kF32;
    view.numel = i % 50 == 0 ? 20000 + i : i % 7;
    view.active = i != 350;
    view.grad = (i % 2 ? half : full) + i % 5 * size_of(view.grad_dtype);
    views.push_back(view);
    list.push_back(static_cast<int32_t>((i * 7) % kCount));  // out of order
  }
  const auto poisoned = [&](std::vector<std::pair<int64_t, int64_t>> places) {
    std::vector<ParamView> changed = views;
    for (const auto& [param, element] : places) {
      ParamView& view = changed[static_cast<size_t>(param)];
      Bytes grad = values(static_cast<uint64_t>(param), view.grad_dtype, view.numel);
      set_value(grad, view.grad_dtype, element, std::nanf(""));
      view.grad = machine.put(grad);
    }
    auto* findings = machine.put_one(Findings{});
    machine.ops().scan(machine.on(), list, machine.put(changed), findings);
    machine.finish();
    return machine.get_one(findings);
  };
  CHECK(poisoned({}).nonfinite == 0);
  CHECK(poisoned({{350, 20349}}).nonfinite == 0);
  // 592 and 584 come first among those of the list's second and third 256.
  for (const auto& [param, element] : {std::pair<int64_t, int64_t>(0, 0),
                                       {100, 20099},
                                       {550, 8192},
                                       {599, 3},
                                       {255, 2},
                                       {257, 4},
                                       {592, 0},
                                       {584, 0}}) {
    const Findings found = poisoned({{param, element}, {350, 0}});
    CHECK(found.nonfinite == 1);
    CHECK(found.first_param == param);
  }
  CHECK(poisoned({{599, 0}, {100, 7}, {102, 1}}).first_param == 100);
}

TEST_CASE("cuda scan: sees gradients scaled, and squared where there is a second moment",
          "[cuda]") {
  Machine machine(make_device(true));
  auto* grad = machine.put(std::vector<float>{1.0f, 1e25f, -2.0f});
  auto* variance = machine.put(std::vector<float>(3));
  const std::vector<int32_t> list = {0};
  const auto found = [&](float scale, bool second_moment) {
    ParamView view;
    view.grad = grad;
    view.numel = 3;
    view.grad_scale = scale;
    if (second_moment) view.variance = variance;
    auto* findings = machine.put_one(Findings{});
    machine.ops().scan(machine.on(), list, machine.put_one(view), findings);
    machine.finish();
    return machine.get_one(findings).nonfinite == 1;
  };
  CHECK_FALSE(found(1.0f, false));
  CHECK(found(1.0f, true));  // 1e50
  CHECK(found(1e14f, false));
  CHECK_FALSE(found(1e-7f, true));
}

TEST_CASE("cuda commit: weights, masters and momentum have the host's bits", "[cuda]") {
  const Scene scene = make_scene(4);
  for (const DType transport : kDTypes) {
    const auto before = committed_by(make_host(), scene, transport, Ballot{}, false);
    const auto expected = committed_by(make_host(), scene, transport, consent(), false);
    CHECK(difference(before, expected) >= 0);
    CHECK(difference(committed_by(make_device(true), scene, transport, consent(), false),
                     expected) == -1);
  }
}

TEST_CASE("cuda commit: AdamW has the host's bits", "[cuda]") {
  const Scene scene = make_scene(5);
  const auto before = committed_by(make_host(), scene, DType::kF32, Ballot{}, true);
  const auto expected = committed_by(make_host(), scene, DType::kF32, consent(), true);
  CHECK(difference(before, expected) >= 0);
  CHECK(difference(committed_by(make_device(true), scene, DType::kF32, consent(), true),
                   expected) == -1);
}

TEST_CASE("cuda commit: AdamW updates every element of a long list once", "[cuda]") {
  // With these numbers a step adds 1 to every weight.
  Machine machine(make_device(true));
  constexpr int64_t kCount = 700, kLongest = 9000;
  std::vector<ParamView> views;
  std::vector<int32_t> list;
  int64_t total = 0;
  const auto numel = [](int64_t i) { return i % 100 == 3 ? kLongest : i % 5; };
  for (int64_t i = 0; i < kCount; ++i) total += numel(i);
  const std::vector<float> zero(static_cast<size_t>(total)), one(zero.size(), 1.0f);
  auto *weights = machine.put(zero), *first = machine.put(zero), *second = machine.put(zero);
  auto* grads = machine.put(one);
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
  AdamScalars scalars;
  scalars.beta1 = scalars.beta2 = scalars.eps = 0.0f;
  scalars.rate = -1.0f;
  machine.ops().commit_adamw(machine.on(), list, {},
                             {.params = machine.put(views), .adam = machine.put_one(scalars)},
                             {.sum = machine.put_one(consent()), .world = kWorld, .stamp = kStamp});
  machine.finish();
  CHECK((machine.get(weights, total) == one));
}

TEST_CASE("cuda commit: nothing is written unless every rank consents to the same stamp",
          "[cuda]") {
  const Scene scene = make_scene(6);
  std::vector<Ballot> rejected = {reject_preset(), Ballot{},  consent(),
                                  consent(),       consent(), consent()};
  rejected[2].consent = kWorld - 1;
  rejected[3].stamp += 1;
  rejected[4].gradient_replicas = -1;
  rejected[5].weight_replicas = 1;
  const auto before = committed_by(make_host(), scene, DType::kBF16, Ballot{}, false);
  for (const Ballot& sum : rejected)
    for (const bool adamw : {false, true})
      CHECK(difference(committed_by(make_device(true), scene, DType::kBF16, sum, adamw), before) ==
            -1);
}

TEST_CASE("cuda ballot: says what the findings and the rank say", "[cuda]") {
  Machine machine(make_device(true));
  for (const bool local_ok : {false, true}) {
    for (const int64_t nonfinite : {0, 1}) {
      Findings found;
      found.nonfinite = nonfinite;
      found.first_param = nonfinite ? 3 : -1;
      found.zero_matrices = 5;
      found.gradient_replicas = -6;
      found.weight_replicas = int64_t{7} << 40;
      auto* findings = machine.put_one(found);
      auto* ballot = machine.put_one(reject_preset());
      machine.ops().cast_ballot(machine.on(), ballot, findings, kStamp, 11, local_ok);
      machine.finish();
      const Ballot got = machine.get_one(ballot);
      CHECK(got.consent == (local_ok && !nonfinite ? 1 : 0));
      CHECK(got.nonfinite == (local_ok && nonfinite ? 1 : 0));
      CHECK(got.stamp == kStamp);
      CHECK(got.orthogonalized == 11);
      CHECK(got.zero_matrices == 5);
      CHECK(got.gradient_replicas == -6);
      CHECK(got.weight_replicas == int64_t{7} << 40);
    }
  }
}
