#include <catch2/catch.hpp>
#include <limits>

#include "host_fixture.hpp"

using namespace muonrt;
using host_test::dtype_of;
using host_test::f32;
using host_test::OnHost;
using host_test::same_bits;
using host_test::ulp;
using host_test::values;

namespace {

constexpr int64_t kStamp = 0x7123456789abcdefll;  // world x stamp wraps

Ballot passing(int64_t world) {
  Ballot sum;
  sum.consent = world;
  sum.stamp = static_cast<int64_t>(static_cast<uint64_t>(world) * static_cast<uint64_t>(kStamp));
  return sum;
}

/// Everything one parameter owns.
template <class Param, class Grad>
struct Parameter {
  Parameter(uint64_t seed, int64_t n, bool with_master)
      : param(values<Param>(seed, n)),
        grad(values<Grad>(seed + 1, n)),
        momentum(values<float>(seed + 2, n)),
        variance(values<float>(seed + 3, n)) {
    for (float& v : variance) v = std::abs(v);
    if (with_master) master = values<float>(seed + 4, n);
  }
  ParamView view(int32_t group = 0) {
    ParamView out;
    out.param = param.data();
    out.grad = grad.data();
    out.master = master.empty() ? nullptr : master.data();
    if (out.master) out.form = WeightForm::kMaster;
    out.momentum = momentum.data();
    out.variance = variance.data();
    out.numel = static_cast<int64_t>(param.size());
    out.param_dtype = dtype_of<Param>();
    out.grad_dtype = dtype_of<Grad>();
    out.group = out.scalars = group;
    return out;
  }
  bool same_as(const Parameter& other) const {
    return same_bits(param, other.param) && same_bits(master, other.master) &&
           same_bits(momentum, other.momentum) && same_bits(variance, other.variance) &&
           same_bits(grad, other.grad);
  }
  std::vector<Param> param;
  std::vector<Grad> grad;
  std::vector<float> master, momentum, variance;
};

Piece piece(int32_t param, int64_t rows, int64_t cols, int64_t offset, int64_t ld, int64_t packed,
            float scale) {
  Piece out{};
  out.param = param;
  out.rows = rows;
  out.cols = cols;
  out.local_offset = offset;
  out.local_ld = ld;
  out.packed_offset = packed;
  out.update_scale = scale;
  return out;
}

}  // namespace

TEMPLATE_TEST_CASE("host commit_muon: momentum, decay and update are the textbook's, in place",
                   "[unit][host]", (std::pair<float, float>), (std::pair<float, bf16>),
                   (std::pair<bf16, float>), (std::pair<bf16, bf16>)) {
  using Param = typename TestType::first_type;
  using Grad = typename TestType::second_type;
  MuonScalars groups[2];
  groups[0] = {.momentum = 0.9f, .rate = 0.02f, .decay = 0.001f, .grad_scale = 0.5f};
  groups[1] = {.momentum = 0.8f, .heavy_ball = 1, .rate = 0.3f, .decay = 0.0f};
  for (const bool with_master : {false, true}) {
    for (int32_t group = 0; group < 2; ++group) {
      Parameter<Param, Grad> p(10, 11 * 13, with_master);
      const Parameter<Param, Grad> before = p;
      const ParamView params[] = {p.view(group)};
      // A block within the local shard, and whole rows below it.
      const std::vector<Piece> pieces = {piece(0, 4, 5, 13 + 2, 13, 3, 0.7f),
                                         piece(0, 3, 13, 6 * 13, 13, 23, 0.7f)};
      const auto message = values<bf16>(77, 80);
      const Ballot sum = passing(3);
      OnHost host;
      host.ops().commit_muon(*host.stream, pieces, {.params = params, .groups = groups},
                             {.data = message.data(), .dtype = DType::kBF16},
                             {.sum = &sum, .world = 3, .stamp = kStamp});
      host.finish();
      const MuonScalars& s = groups[group];
      std::vector<bool> touched(p.param.size());
      for (const Piece& each : pieces) {
        for (int64_t i = 0; i < each.rows * each.cols; ++i) {
          const auto at = static_cast<size_t>(each.local_offset + i / each.cols * each.local_ld +
                                              i % each.cols);
          const double o = f32(message[static_cast<size_t>(each.packed_offset + i)]);
          const double g = static_cast<double>(s.grad_scale) * f32(before.grad[at]);
          const double mu = s.momentum;
          const double m = mu * before.momentum[at] + (s.heavy_ball ? 1.0 : 1.0 - mu) * g;
          const double old = with_master ? before.master[at] : f32(before.param[at]);
          const double w = old * (1.0 - s.decay) - static_cast<double>(s.rate) * 0.7f * o;
          // A few roundings in f32 of values below 2.
          REQUIRE(std::abs(p.momentum[at] - m) <= 4 * 0x1p-24);
          if (with_master) {
            REQUIRE(std::abs(p.master[at] - w) <= 4 * 0x1p-24);
            REQUIRE(f32(p.param[at]) == f32(from_f32<Param>(p.master[at])));
          } else {
            REQUIRE(std::abs(f32(p.param[at]) - w) <= 4 * 0x1p-24 + 0.5 * ulp<Param>(w));
          }
          touched[at] = true;
        }
      }
      for (size_t i = 0; i < touched.size(); ++i) {
        if (touched[i]) continue;
        REQUIRE(f32(p.param[i]) == f32(before.param[i]));
        REQUIRE(p.momentum[i] == before.momentum[i]);
        if (with_master) REQUIRE(p.master[i] == before.master[i]);
      }
      REQUIRE(same_bits(p.grad, before.grad));
      REQUIRE(same_bits(p.variance, before.variance));
    }
  }
}

TEST_CASE("host commit_muon: momentum is the one whose direction was packed", "[unit][host]") {
  // Without Nesterov the packed direction in f32 is the new momentum itself.
  Parameter<float, bf16> p(20, 300, false);
  const ParamView params[] = {p.view()};
  const MuonScalars groups[1] = {{.nesterov = 0, .rate = 0.1f, .grad_scale = 0.3f}};
  const std::vector<Piece> pieces = {piece(0, 10, 30, 0, 30, 0, 1.0f)};
  std::vector<float> direction(300);
  const Ballot sum = passing(1);
  Findings findings;
  OnHost host;
  host.ops().pack_direction(*host.stream, pieces, {.params = params, .groups = groups},
                            {.data = direction.data(), .dtype = DType::kF32}, &findings);
  host.ops().commit_muon(*host.stream, pieces, {.params = params, .groups = groups},
                         {.data = direction.data(), .dtype = DType::kF32},
                         {.sum = &sum, .world = 1, .stamp = kStamp});
  host.finish();
  REQUIRE(same_bits(p.momentum, direction));
}

TEST_CASE("host commit: momentum and update alone move nothing else, and both are commit_muon",
          "[unit][host]") {
  const Parameter<bf16, float> before(25, 700, true);
  auto whole = before, halves = before;
  const MuonScalars groups[1] = {{.rate = 0.1f, .decay = 0.01f}};
  const std::vector<Piece> pieces = {piece(0, 7, 90, 3, 100, 0, 0.5f)};
  const auto update = values<bf16>(26, 7 * 90);
  const ConstWire message{.data = update.data(), .dtype = DType::kBF16};
  const Ballot sum = passing(2);
  const Verdict verdict{.sum = &sum, .world = 2, .stamp = kStamp};
  OnHost host;
  const ParamView view = whole.view(), of_halves = halves.view();
  host.ops().commit_muon(*host.stream, pieces, {.params = &view, .groups = groups}, message,
                         verdict);
  host.ops().commit_momentum(*host.stream, pieces, {.params = &of_halves, .groups = groups},
                             verdict);
  host.finish();
  REQUIRE(same_bits(halves.momentum, whole.momentum));
  REQUIRE((same_bits(halves.param, before.param) && same_bits(halves.master, before.master)));
  host.ops().commit_update(*host.stream, pieces, {.params = &of_halves, .groups = groups}, message,
                           verdict);
  host.finish();
  REQUIRE(halves.same_as(whole));
}

TEST_CASE("host commit: nothing moves unless every rank consented to this very stamp",
          "[unit][host]") {
  const int64_t world = 5;
  Ballot short_of_one = passing(world), stale = passing(world), two_more = passing(world);
  short_of_one.consent -= 1;
  stale.stamp -= 1;
  two_more.consent += 2;
  Ballot other_gradients = passing(world), other_weights = passing(world);
  other_gradients.gradient_replicas = -1;
  other_weights.weight_replicas = 1;
  for (const Ballot& sum :
       {short_of_one, stale, two_more, other_gradients, other_weights, reject_preset(), Ballot{}}) {
    Parameter<bf16, float> p(30, 60, true);
    const auto before = p;
    const ParamView params[] = {p.view()};
    const MuonScalars groups[1] = {{.rate = 0.1f}};
    const AdamScalars adam[1] = {{.rate = 0.1f}};
    const std::vector<Piece> pieces = {piece(0, 6, 10, 0, 10, 0, 1.0f)};
    const std::vector<int32_t> list = {0};
    const auto message = values<float>(31, 60);
    OnHost host;
    host.ops().commit_muon(*host.stream, pieces, {.params = params, .groups = groups},
                           {.data = message.data(), .dtype = DType::kF32},
                           {.sum = &sum, .world = world, .stamp = kStamp});
    host.ops().commit_adamw(*host.stream, list, {}, {.params = params, .adam = adam},
                            {.sum = &sum, .world = world, .stamp = kStamp});
    host.finish();
    REQUIRE(p.same_as(before));
  }
}

TEST_CASE("host commit: an inactive parameter is left untouched and unread", "[unit][host]") {
  Parameter<float, float> on(40, 12, true), off(50, 12, true);
  const auto before = off;
  ParamView params[] = {on.view(), off.view(), ParamView{}};
  params[1].active = params[2].active = 0;
  params[1].grad = nullptr;
  const MuonScalars groups[1] = {{.rate = 0.1f}};
  const AdamScalars adam[1] = {{.rate = 0.1f}};
  const std::vector<Piece> pieces = {piece(1, 3, 4, 0, 4, 0, 1.0f), piece(0, 3, 4, 0, 4, 12, 1.0f),
                                     piece(2, 3, 4, 0, 4, 24, 1.0f)};
  const std::vector<int32_t> list = {2, 1, 0};
  const auto message = values<float>(41, 36);
  const Ballot sum = passing(1);
  const auto started = on;
  OnHost host;
  host.ops().commit_muon(*host.stream, pieces, {.params = params, .groups = groups},
                         {.data = message.data(), .dtype = DType::kF32},
                         {.sum = &sum, .world = 1, .stamp = kStamp});
  host.ops().commit_adamw(*host.stream, list, {}, {.params = params, .adam = adam},
                          {.sum = &sum, .world = 1, .stamp = kStamp});
  host.finish();
  REQUIRE(off.same_as(before));
  REQUIRE_FALSE(on.same_as(started));
}

TEST_CASE("host commit: bits do not depend on cuts or threads", "[unit][host][tsan]") {
  const int64_t rows = 300, cols = 311;
  const auto message = values<bf16>(61, rows * cols);
  const MuonScalars groups[1] = {{.rate = 0.1f, .decay = 0.01f}};
  const AdamScalars adam[1] = {{.rate = 0.1f, .decay = 0.01f}};
  const Ballot sum = passing(2);
  const std::vector<int32_t> list = {0};
  std::vector<Parameter<bf16, float>> results;
  for (const int threads : {1, 2, 4}) {
    for (const bool columns : {false, true}) {
      Parameter<bf16, float> p(60, rows * cols, true);
      const ParamView params[] = {p.view()};
      std::vector<Piece> pieces;
      std::vector<bf16> packed(message.size());
      int64_t at = 0;
      const int64_t step = columns ? 37 : cols;
      for (int64_t begin = 0; begin < cols; begin += step) {
        const int64_t width = std::min(step, cols - begin);
        pieces.push_back(piece(0, rows, width, begin, cols, at, 0.5f));
        for (int64_t r = 0; r < rows; ++r, at += width)
          std::copy_n(message.begin() + r * cols + begin, width, packed.begin() + at);
      }
      OnHost host(threads);
      host.ops().commit_muon(*host.stream, pieces, {.params = params, .groups = groups},
                             {.data = packed.data(), .dtype = DType::kBF16},
                             {.sum = &sum, .world = 2, .stamp = kStamp});
      host.ops().commit_adamw(*host.stream, list, {}, {.params = params, .adam = adam},
                              {.sum = &sum, .world = 2, .stamp = kStamp});
      host.finish();
      results.push_back(p);
      REQUIRE(p.same_as(results.front()));
    }
  }
}

TEMPLATE_TEST_CASE("host commit_adamw: moments and weight are the textbook's", "[unit][host]",
                   (std::pair<float, float>), (std::pair<float, bf16>), (std::pair<bf16, float>),
                   (std::pair<bf16, bf16>)) {
  using Param = typename TestType::first_type;
  using Grad = typename TestType::second_type;
  const AdamScalars scalars[2] = {{},
                                  {.beta1 = 0.9f,
                                   .beta2 = 0.97f,
                                   .eps = 1e-3f,
                                   .rate = 0.01f,
                                   .decay = 0.002f,
                                   .correction1 = 2.0f,
                                   .correction2 = 5.0f,
                                   .grad_scale = 0.25f}};
  for (const bool with_master : {false, true}) {
    for (const int64_t n : {1, 3, 37, 1000}) {
      Parameter<Param, Grad> p(70, n, with_master);
      const auto before = p;
      const ParamView params[] = {ParamView{}, p.view(1)};
      const std::vector<int32_t> list = {1};
      const Ballot sum = passing(1);
      OnHost host;
      host.ops().commit_adamw(*host.stream, list, {}, {.params = params, .adam = scalars},
                              {.sum = &sum, .world = 1, .stamp = kStamp});
      host.finish();
      const AdamScalars& s = scalars[1];
      const double b1 = s.beta1, b2 = s.beta2;
      for (size_t i = 0; i < p.param.size(); ++i) {
        const double g = 0.25 * f32(before.grad[i]);
        const double m = b1 * before.momentum[i] + (1 - b1) * g;
        const double v = b2 * before.variance[i] + (1 - b2) * g * g;
        const double old = with_master ? before.master[i] : f32(before.param[i]);
        const double step = 0.01f * (2.0 * m) / (std::sqrt(5.0 * v) + s.eps);
        const double w = old * (1.0 - s.decay) - step;
        const double bound = 4 * 0x1p-24 + 16 * 0x1p-24 * std::abs(step);
        REQUIRE(std::abs(p.momentum[i] - m) <= 4 * 0x1p-24);
        REQUIRE(std::abs(p.variance[i] - v) <= 4 * 0x1p-24);
        if (with_master) {
          REQUIRE(std::abs(p.master[i] - w) <= bound);
          REQUIRE(f32(p.param[i]) == f32(from_f32<Param>(p.master[i])));
        } else {
          REQUIRE(std::abs(f32(p.param[i]) - w) <= bound + 0.5 * ulp<Param>(w));
        }
      }
      REQUIRE(same_bits(p.grad, before.grad));
    }
  }
}

TEST_CASE("host commit_adamw: eps stands outside the root", "[unit][host]") {
  // Zero gradient and moments but m: step = rate * m / eps exactly.
  Parameter<float, float> p(80, 1, false);
  p.param = {1.0f};
  p.grad = {0.0f};
  p.momentum = {0.5f};
  p.variance = {0.0f};
  const AdamScalars scalars[1] = {{.beta1 = 0.5f, .eps = 0x1p-10f, .rate = 0x1p-12f}};
  const ParamView params[] = {p.view()};
  const std::vector<int32_t> list = {0};
  const Ballot sum = passing(1);
  OnHost host;
  host.ops().commit_adamw(*host.stream, list, {}, {.params = params, .adam = scalars},
                          {.sum = &sum, .world = 1, .stamp = kStamp});
  host.finish();
  REQUIRE(p.param[0] == 1.0f - 0.25f * 0.25f);
}

TEST_CASE("host cast_ballot: consent needs a sound rank that found nothing", "[unit][host]") {
  OnHost host;
  for (const bool ok : {false, true}) {
    for (const int64_t found : {0, 1}) {
      Findings findings;
      findings.nonfinite = found;
      findings.zero_matrices = 4;
      findings.gradient_replicas = -6;
      findings.weight_replicas = int64_t{7} << 40;
      Ballot ballot = reject_preset();
      host.ops().cast_ballot(*host.stream, &ballot, &findings, kStamp, 17, ok);
      host.finish();
      REQUIRE(ballot.consent == (ok && found == 0 ? 1 : 0));
      REQUIRE(ballot.nonfinite == (ok && found == 1 ? 1 : 0));
      REQUIRE(ballot.stamp == kStamp);
      REQUIRE(ballot.orthogonalized == 17);
      REQUIRE(ballot.zero_matrices == 4);
      REQUIRE(ballot.gradient_replicas == -6);
      REQUIRE(ballot.weight_replicas == int64_t{7} << 40);
    }
  }
}
