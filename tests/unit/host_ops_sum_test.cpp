#include <catch2/catch.hpp>
#include <cmath>

#include "backend/update_rules.hpp"
#include "host_fixture.hpp"

using namespace muonrt;
using host_test::dtype_of;
using host_test::f32;
using host_test::OnHost;
using host_test::same_bits;
using host_test::values;

namespace {

constexpr int64_t kRows = 37, kLd = 61, kCols = 23, kFirst = 5, kNumel = kRows * kLd;

/// kRows x kCols inside a matrix of kRows x kLd, packed densely behind three elements.
Piece piece() {
  Piece p{};
  p.rows = kRows;
  p.cols = kCols;
  p.local_offset = kFirst;
  p.local_ld = kLd;
  p.packed_offset = 3;
  p.update_scale = 0.4f;
  return p;
}

constexpr int64_t kMessage = 3 + kRows * kCols;

/// Calls use(index in the local array, index in the message).
template <class Use>
void for_each(const Use& use) {
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kCols; ++c)
      use(static_cast<size_t>(kFirst + r * kLd + c), static_cast<size_t>(3 + r * kCols + c));
  }
}

Ballot consent() {
  Ballot sum{};
  sum.consent = 1;
  sum.stamp = 9;
  return sum;
}

AdamScalars some_scalars() {
  AdamScalars s;
  s.rate = 0.01f;
  s.decay = 0.002f;
  s.correction1 = 1.9f;
  s.correction2 = 3.1f;
  s.grad_scale = 0.5f;
  return s;
}

}  // namespace

TEMPLATE_TEST_CASE("host sum: addends are added one after the other in f32, for any threads",
                   "[unit][host]", float, bf16) {
  const auto a = values<TestType>(1, kMessage), b = values<TestType>(2, kMessage, 3.0f),
             c = values<TestType>(3, kMessage, 0.3f);
  std::vector<float> expected(kNumel, 7.0f);
  for_each([&](size_t local, size_t packed) {
    const float sum = f32(a[packed]) + f32(b[packed]);
    expected[local] = sum + f32(c[packed]);
  });
  for (const int threads : {1, 3}) {
    OnHost host(threads);
    std::vector<float> sums(kNumel, 7.0f);
    const std::vector<Piece> pieces = {piece()};
    bool first = true;
    for (const auto* message : {&a, &b, &c}) {
      host.ops().accumulate(*host.stream, pieces, sums.data(),
                            {.data = message->data(), .dtype = dtype_of<TestType>()}, first);
      first = false;
    }
    host.finish();
    CHECK(same_bits(sums, expected));
  }
}

TEMPLATE_TEST_CASE("host sum: AdamW's values are what its commit would write, and nothing else is",
                   "[unit][host]", float, bf16) {
  const auto param = values<TestType>(1, kNumel);
  const auto grad = values<float>(2, kNumel), first = values<float>(3, kNumel),
             master = values<float>(5, kNumel);
  auto second = values<float>(4, kNumel);
  for (float& v : second) v = std::fabs(v);
  const AdamScalars s = some_scalars();
  for (const bool with_master : {false, true}) {
    auto w = param;
    auto m = first, v = second, master_now = master;
    std::vector<float> message(kMessage, 7.0f), expected(kMessage, 7.0f);
    for_each([&](size_t local, size_t packed) {
      float m1 = first[local], v1 = second[local];
      expected[packed] = adamw_update(with_master ? master[local] : f32(param[local]),
                                      grad[local] * 0.5f, m1, v1, s);
    });
    ParamView view;
    view.param = w.data();
    view.param_dtype = dtype_of<TestType>();
    view.master = with_master ? master_now.data() : nullptr;
    view.form = with_master ? WeightForm::kMaster : WeightForm::kPlain;
    view.momentum = m.data();
    view.variance = v.data();
    view.grad = grad.data();
    view.numel = kNumel;
    OnHost host(2);
    Findings findings;
    const std::vector<Piece> pieces = {piece()};
    const auto pack = [&] {
      host.ops().pack_adamw(*host.stream, pieces, {.params = &view, .adam = &s},
                            {.data = message.data(), .dtype = DType::kF32}, &findings);
      host.finish();
    };
    pack();
    CHECK(same_bits(message, expected));
    CHECK(findings.nonfinite == 0);
    CHECK(same_bits(w, param));
    CHECK(same_bits(m, first));
    CHECK(same_bits(v, second));
    CHECK(same_bits(master_now, master));
    view.active = 0;
    pack();
    for_each([&](size_t, size_t packed) { expected[packed] = 0.0f; });
    CHECK(same_bits(message, expected));
  }
}

TEST_CASE("host sum: AdamW's values note a sum whose square is beyond f32", "[unit][host]") {
  std::vector<float> grad(kNumel, 1.0f), state(kNumel), param(kNumel), message(kMessage);
  ParamView view;
  view.param = param.data();
  view.grad = grad.data();
  view.momentum = view.variance = state.data();
  view.numel = kNumel;
  const AdamScalars s = some_scalars();
  const std::vector<Piece> pieces = {piece()};
  const auto found = [&](size_t at) {
    std::fill(grad.begin(), grad.end(), 1.0f);
    grad[at] = 1e25f;
    OnHost host;
    Findings findings;
    host.ops().pack_adamw(*host.stream, pieces, {.params = &view, .adam = &s},
                          {.data = message.data(), .dtype = DType::kF32}, &findings);
    host.finish();
    return findings.first_param;
  };
  CHECK(found(kFirst + 4) == 0);
  CHECK(found(kFirst - 1) == -1);  // no piece covers it
}

TEMPLATE_TEST_CASE("host sum: values are taken over by master and parameter, where ballots pass",
                   "[unit][host]", float, bf16) {
  const auto param = values<TestType>(1, kNumel);
  const auto master = values<float>(2, kNumel), message = values<float>(3, kMessage);
  for (const bool with_master : {false, true}) {
    auto w = param;
    auto m = master;
    ParamView view;
    view.param = w.data();
    view.param_dtype = dtype_of<TestType>();
    view.master = with_master ? m.data() : nullptr;
    view.form = with_master ? WeightForm::kMaster : WeightForm::kPlain;
    view.numel = kNumel;
    const std::vector<Piece> pieces = {piece()};
    auto expected = param;
    auto expected_master = master;
    OnHost host(2);
    const auto commit = [&](const Ballot& sum) {
      host.ops().commit_values(*host.stream, pieces, &view,
                               {.data = message.data(), .dtype = DType::kF32},
                               {.sum = &sum, .world = 1, .stamp = 9});
      host.finish();
    };
    commit(reject_preset());
    CHECK(same_bits(w, expected));
    commit(consent());
    for_each([&](size_t local, size_t packed) {
      expected[local] = from_f32<TestType>(message[packed]);
      if (with_master) expected_master[local] = message[packed];
    });
    CHECK(same_bits(w, expected));
    CHECK(same_bits(m, expected_master));
  }
}

TEST_CASE("host sum: a view without momentum sends its gradient as it is and updates its weights",
          "[unit][host]") {
  auto param = values<float>(1, kNumel);
  const auto grad = values<bf16>(2, kNumel);
  const auto update = values<float>(3, kMessage);
  ParamView view;
  view.param = param.data();
  view.grad = grad.data();
  view.grad_dtype = DType::kBF16;
  view.numel = kNumel;
  MuonScalars s;
  s.rate = 0.1f;
  s.decay = 0.01f;
  s.grad_scale = 0.25f;
  const std::vector<Piece> pieces = {piece()};
  std::vector<bf16> message(kMessage), sent(kMessage);
  auto expected = param;
  for_each([&](size_t local, size_t packed) {
    sent[packed] = grad[local];
    expected[local] = muon_update(param[local], update[packed], 0.4f, 1.0f, s);
  });
  OnHost host;
  Findings findings;
  const Ballot sum = consent();
  host.ops().pack_addend(*host.stream, pieces, &view,
                         {.data = message.data(), .dtype = DType::kBF16}, &findings);
  host.ops().commit_update(*host.stream, pieces, {.params = &view, .groups = &s},
                           {.data = update.data(), .dtype = DType::kF32},
                           {.sum = &sum, .world = 1, .stamp = 9});
  host.finish();
  CHECK(same_bits(message, sent));
  CHECK(same_bits(param, expected));
}

TEST_CASE("host sum: a view without weights takes in the momentum alone", "[unit][host]") {
  auto momentum = values<float>(1, kNumel);
  const auto grad = values<float>(2, kNumel);
  MuonScalars s;
  s.grad_scale = 0.25f;
  auto expected = momentum;
  for_each([&](size_t local, size_t) {
    expected[local] = next_momentum(momentum[local], grad[local] * 0.25f, s);
  });
  ParamView view;
  view.grad = grad.data();
  view.momentum = momentum.data();
  view.numel = kNumel;
  const std::vector<Piece> pieces = {piece()};
  const Ballot sum = consent();
  OnHost host;
  host.ops().commit_momentum(*host.stream, pieces, {.params = &view, .groups = &s},
                             {.sum = &sum, .world = 1, .stamp = 9});
  host.finish();
  CHECK(same_bits(momentum, expected));
}
