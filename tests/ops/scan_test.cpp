#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "ops/subjects.hpp"

// Tests the scan of gradients that are not sent, the comparison of weights with their master
// weights, copies and fills.

using namespace muonrt;
using namespace ops_test;

namespace {

Findings scanned(Machine& machine, const std::vector<ParamView>& views,
                 const std::vector<int32_t>& list) {
  auto* findings = machine.put_one(Findings{});
  machine.ops().scan(machine.on(), list, machine.put(views), findings);
  machine.finish();
  return machine.get_one(findings);
}

}  // namespace

TEST_CASE("scan: finds values that are not finite in a list of many parameters of all sizes",
          "[ops]") {
  // There are more parameters than a thread block has threads. Some are empty, and some are longer
  // than the part that a block scans at a time.
  constexpr int64_t kCount = 600, kLongest = 21000;
  for (const Subject& subject : subjects()) {
    INFO(subject.name);
    Machine machine(subject.make());
    std::vector<ParamView> views;
    std::vector<int32_t> list;
    // All gradients are parts of two arrays, one for each dtype.
    const auto* full = machine.put(values(1, DType::kF32, kLongest));
    const auto* half = machine.put(values(1, DType::kBF16, kLongest));
    for (int64_t i = 0; i < kCount; ++i) {
      ParamView view;
      view.grad_dtype = i % 2 ? DType::kBF16 : DType::kF32;
      view.numel = i % 50 == 0 ? 20000 + i : i % 7;
      view.active = i != 350;
      view.grad = (i % 2 ? half : full) + i % 5 * size_of(view.grad_dtype);
      views.push_back(view);
      list.push_back(static_cast<int32_t>((i * 7) % kCount));  // not in ascending order
    }
    const auto poisoned = [&](const std::vector<std::pair<int64_t, int64_t>>& places) {
      std::vector<ParamView> changed = views;
      for (const auto& [param, element] : places) {
        ParamView& view = changed[static_cast<size_t>(param)];
        Bytes grad = values(static_cast<uint64_t>(param), view.grad_dtype, view.numel);
        set_value(grad, view.grad_dtype, element, std::nanf(""));
        view.grad = machine.put(grad);
      }
      return scanned(machine, changed, list);
    };
    CHECK(poisoned({}).nonfinite == 0);
    CHECK(poisoned({{350, 20349}}).nonfinite == 0);
    // Parameter 592 is the first element of the second group of 256 in the list, and parameter 584
    // is the first element of the third group.
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
    CHECK(scanned(machine, views, {}).nonfinite == 0);
  }
}

TEST_CASE("scan: checks every element of a listed parameter that is active or clip_only",
          "[ops][tsan]") {
  for (const Subject& subject : subjects()) {
    INFO(subject.name);
    Machine machine(subject.make());
    for (int64_t i = 0; i < 37; ++i) {
      Bytes grad = values(2, DType::kF32, 37);
      set_value(grad, DType::kF32, i, -HUGE_VALF);
      std::vector<ParamView> views(2);
      views[0].grad = views[1].grad = machine.put(grad);
      views[0].numel = views[1].numel = 37;
      views[0].active = 0;
      CHECK(scanned(machine, views, {1, 0}).first_param == 1);
      CHECK(scanned(machine, views, {0}).nonfinite == 0);
      views[0].clip_only = 1;
      CHECK(scanned(machine, views, {1, 0}).first_param == 0);
    }
  }
}

TEST_CASE("scan: checks scaled gradients, and their squares if there is a second moment", "[ops]") {
  for (const Subject& subject : subjects()) {
    INFO(subject.name);
    Machine machine(subject.make());
    ParamView view;
    view.grad = machine.put(std::vector<float>{1.0f, 1e25f, -2.0f});
    view.numel = 3;
    auto* variance = machine.put(std::vector<float>(3));
    const auto found = [&](float scale, bool second_moment) {
      view.grad_scale = scale;
      view.variance = second_moment ? variance : nullptr;
      return scanned(machine, {view}, {0}).nonfinite == 1;
    };
    CHECK_FALSE(found(1.0f, false));
    CHECK(found(1.0f, true));  // the square is 1e50
    CHECK(found(1e14f, false));
    CHECK_FALSE(found(1e-7f, true));
  }
}

TEST_CASE("check_masters: a weight must be its master weight rounded to nearest, or by the caller",
          "[ops]") {
  const uint32_t one = 0x3f800000, sign = 0x80000000;
  struct Case {
    uint32_t master, weight;  // bits of an f32 value; a bf16 weight is its upper half
    bool nearest, by_caller;  // whether the weight is accepted
  };
  const Case halves[] = {{one, one, true, true},
                         {one, one + 0x10000, false, false},
                         {one + 0x8000, one, true, true},  // a tie, rounded to even
                         {one + 0x8000, one + 0x10000, false, true},
                         {one + 0x18000, one + 0x20000, true, true},
                         {one + 0x18000, one + 0x10000, false, true},
                         {one + 1, one, true, true},
                         {one + 1, one + 0x10000, false, true},
                         {one + 1, one - 0x10000, false, false},
                         {one + 0xffff, one + 0x10000, true, true},
                         {one + 0xffff, one + 0x20000, false, false},
                         {0, sign, false, false},
                         {sign, sign, true, true},
                         {sign | (one + 0xffff), one + 0x10000, false, false},
                         {1, 0, true, true},
                         {one, 0x7fc00000, false, false}};
  const Case full[] = {{one, one, true, true},
                       {one, one + 1, false, false},
                       {0, sign, false, false},
                       {one, 0x7fc00000, false, false}};
  constexpr int64_t kNumel = 8201;  // longer than the part that a block checks at a time
  for (const Subject& subject : subjects()) {
    INFO(subject.name);
    Machine machine(subject.make());
    const auto check = [&](const Case& c, DType dtype, int64_t at, int64_t numel) {
      // Every parameter has this pair of weight and master weight at one element. Only parameters 1
      // and 3 are active and have master weights, and parameter 3 comes first in the list.
      Bytes weights(static_cast<size_t>(numel * size_of(dtype)));
      std::vector<uint32_t> masters(static_cast<size_t>(numel));
      const uint32_t bits = dtype == DType::kF32 ? c.weight : c.weight >> 16;
      std::memcpy(weights.data() + at * size_of(dtype), &bits, static_cast<size_t>(size_of(dtype)));
      masters[static_cast<size_t>(at)] = c.master;
      ParamView view;
      view.param = machine.put(weights);
      view.master = reinterpret_cast<float*>(machine.put(masters));
      view.numel = numel;
      view.grad_numel = 3;
      view.param_dtype = dtype;
      view.form = WeightForm::kMaster;
      for (const int by_caller : {0, 1}) {
        CAPTURE(c.master, c.weight, by_caller, at);
        view.rounded_by_caller = by_caller;
        std::vector<ParamView> views(5, view);
        views[0].active = 0;
        views[2].form = WeightForm::kParamOnly;
        views[4].form = WeightForm::kRemainder;
        auto* findings = machine.put_one(Findings{});
        const std::vector<int32_t> list = {4, 3, 2, 1, 0};
        machine.ops().check_masters(machine.on(), list, machine.put(views), findings);
        machine.finish();
        const Findings found = machine.get_one(findings);
        CHECK(found.first_stale == ((by_caller ? c.by_caller : c.nearest) ? -1 : 1));
        CHECK(found.nonfinite == 0);
      }
    };
    for (const Case& c : halves) check(c, DType::kBF16, 7, 9);
    for (const Case& c : full) check(c, DType::kF32, 7, 9);
    for (const int64_t at : {int64_t{0}, int64_t{4095}, int64_t{8192}, kNumel - 1}) {
      check(halves[1], DType::kBF16, at, kNumel);
      check(full[1], DType::kF32, at, kNumel);
    }
  }
}

TEST_CASE("copy and fill: exactly the named bytes change", "[ops][tsan]") {
  for (const Subject& subject : subjects()) {
    INFO(subject.name);
    Machine machine(subject.make());
    for (const int64_t bytes : {0, 1, 100, 1000003}) {
      Bytes from;
      for (int64_t i = 0; i < bytes + 2; ++i)
        from.push_back(static_cast<unsigned char>(bits_at(1, i)));
      Bytes expected(from.size(), 9);
      auto* to = machine.put(expected);
      machine.ops().copy(machine.on(), to + 1, machine.put(from) + 1, bytes);
      std::copy(from.begin() + 1, from.end() - 1, expected.begin() + 1);
      CHECK(difference(machine.get(to, bytes + 2), expected) == -1);
      machine.ops().fill(machine.on(), to + 1, 0xa5, bytes);
      std::fill(expected.begin() + 1, expected.end() - 1, 0xa5);
      CHECK(difference(machine.get(to, bytes + 2), expected) == -1);
    }
  }
}
