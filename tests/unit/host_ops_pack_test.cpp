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

/// Piece of parameter `param`: rows x cols at `offset` with `ld`, packed at `packed`.
Piece piece(int32_t param, int64_t rows, int64_t cols, int64_t offset, int64_t ld, int64_t packed) {
  Piece out{};
  out.param = param;
  out.rows = rows;
  out.cols = cols;
  out.local_offset = offset;
  out.local_ld = ld;
  out.packed_offset = packed;
  out.update_scale = 1.0f;
  return out;
}

template <class Grad>
ParamView view(std::vector<Grad>& grad, std::vector<float>& momentum, int32_t group = 0) {
  ParamView out;
  out.grad = grad.data();
  out.grad_dtype = dtype_of<Grad>();
  out.momentum = momentum.data();
  out.numel = static_cast<int64_t>(grad.size());
  out.group = group;
  return out;
}

/// The direction by the textbook.
double direction_of(double m, double g, const MuonScalars& s) {
  const double mu = s.momentum, fresh = (s.heavy_ball ? 1.0 : 1.0 - mu) * g;
  const double next = mu * m + fresh;
  return s.nesterov ? fresh + mu * next : next;
}

}  // namespace

TEMPLATE_TEST_CASE(
    "host pack_direction: every piece is the textbook's direction, nothing else moves",
    "[unit][host]", (std::pair<float, float>), (std::pair<float, bf16>), (std::pair<bf16, float>),
    (std::pair<bf16, bf16>)) {
  using Grad = typename TestType::first_type;
  using Wire = typename TestType::second_type;
  MuonScalars groups[4];
  for (int i = 0; i < 4; ++i) {
    groups[i].heavy_ball = i & 1;
    groups[i].nesterov = i >> 1;
    groups[i].momentum = 0.9f + 0.01f * static_cast<float>(i);
    groups[i].grad_scale = 0.5f;
  }
  auto grad0 = values<Grad>(1, 21 * 19), grad1 = values<Grad>(2, 64);
  auto momentum0 = values<float>(3, 21 * 19), momentum1 = values<float>(4, 64);
  const auto momentum_before = momentum0;
  for (int group = 0; group < 4; ++group) {
    const ParamView params[] = {view(grad0, momentum0, group), view(grad1, momentum1, 0)};
    // A block inside a matrix of ld 19, whole rows, 1 x N, N x 1, an empty one.
    const std::vector<Piece> pieces = {
        piece(0, 5, 7, 2 * 19 + 3, 19, 10), piece(0, 4, 19, 9 * 19, 19, 45),
        piece(1, 1, 64, 0, 64, 125),        piece(0, 21, 1, 18, 19, 190),
        piece(0, 0, 5, 0, 19, 0),           piece(0, 5, 0, 0, 19, 0)};
    const std::vector<Wire> empty(220, from_f32<Wire>(77.0f));
    auto message = empty;
    Findings findings;
    OnHost host;
    host.ops().pack_direction(*host.stream, pieces, {.params = params, .groups = groups},
                              {.data = message.data(), .dtype = dtype_of<Wire>()}, &findings);
    host.finish();
    std::vector<bool> written(220);
    for (const Piece& p : pieces) {
      const auto& g = p.param ? grad1 : grad0;
      const auto& m = p.param ? momentum1 : momentum0;
      for (int64_t r = 0; r < p.rows; ++r) {
        for (int64_t c = 0; c < p.cols; ++c) {
          const auto at = static_cast<size_t>(p.local_offset + r * p.local_ld + c);
          const auto to = static_cast<size_t>(p.packed_offset + r * p.cols + c);
          const double expected =
              direction_of(m[at], 0.5 * f32(g[at]), groups[p.param ? 0 : group]);
          // Five roundings in f32 of values below 4, then one to Wire.
          REQUIRE(std::abs(f32(message[to]) - expected) <= 0.5 * ulp<Wire>(expected) + 5 * 0x1p-23);
          written[to] = true;
        }
      }
    }
    for (size_t i = 0; i < message.size(); ++i)
      if (!written[i]) REQUIRE(f32(message[i]) == 77.0f);
    REQUIRE(findings.nonfinite == 0);
    REQUIRE(findings.first_param == -1);
  }
  REQUIRE(same_bits(momentum0, momentum_before));
}

TEST_CASE("host pack_direction: bits follow from the element, not from cuts, ld or threads",
          "[unit][host][tsan]") {
  const int64_t rows = 300, cols = 411;
  auto grad = values<bf16>(5, rows * cols);
  auto momentum = values<float>(6, rows * cols);
  const ParamView params[] = {view(grad, momentum)};
  const MuonScalars groups[1] = {};
  std::vector<bf16> whole(static_cast<size_t>(rows * cols));
  for (const int threads : {1, 2, 4}) {
    OnHost host(threads);
    Findings findings;
    std::vector<bf16> out(whole.size());
    const std::vector<Piece> one = {piece(0, rows, cols, 0, cols, 0)};
    host.ops().pack_direction(*host.stream, one, {.params = params, .groups = groups},
                              {.data = out.data(), .dtype = DType::kBF16}, &findings);
    host.finish();
    if (threads == 1) whole = out;
    REQUIRE(same_bits(out, whole));
    // As column shards of odd widths.
    std::vector<Piece> shards;
    int64_t packed = 0;
    for (int64_t begin = 0, width = 1; begin < cols; begin += width, width = width * 2 + 1) {
      const int64_t n = std::min(width, cols - begin);
      shards.push_back(piece(0, rows, n, begin, cols, packed));
      packed += rows * n;
    }
    host.ops().pack_direction(*host.stream, shards, {.params = params, .groups = groups},
                              {.data = out.data(), .dtype = DType::kBF16}, &findings);
    host.finish();
    for (const Piece& p : shards)
      for (int64_t r = 0; r < rows; ++r)
        REQUIRE(std::memcmp(&out[static_cast<size_t>(p.packed_offset + r * p.cols)],
                            &whole[static_cast<size_t>(r * cols + p.local_offset)],
                            static_cast<size_t>(p.cols) * sizeof(bf16)) == 0);
  }
}

TEST_CASE("host pack_direction: an inactive parameter packs zeros and is not read",
          "[unit][host]") {
  std::vector<float> poison(12, std::numeric_limits<float>::quiet_NaN());
  ParamView params[] = {view(poison, poison), ParamView{}};
  params[0].active = 0;
  params[1].active = 0;  // no gradient at all
  const MuonScalars groups[1] = {};
  std::vector<bf16> message(16, to_bf16(5.0f));
  Findings findings;
  OnHost host;
  const std::vector<Piece> pieces = {piece(0, 3, 4, 0, 4, 1), piece(1, 2, 1, 0, 1, 13)};
  host.ops().pack_direction(*host.stream, pieces, {.params = params, .groups = groups},
                            {.data = message.data(), .dtype = DType::kBF16}, &findings);
  host.finish();
  for (size_t i = 0; i < 16; ++i) REQUIRE(f32(message[i]) == (i == 0 || i == 15 ? 5.0f : 0.0f));
  REQUIRE(findings.nonfinite == 0);
}

TEST_CASE("host pack_direction: a value that is not finite is found wherever it sits",
          "[unit][host]") {
  const float inf = std::numeric_limits<float>::infinity();
  const MuonScalars groups[1] = {};
  OnHost host;
  std::vector<float> grad[3], momentum[3];
  ParamView params[3];
  for (int i = 0; i < 3; ++i) {
    grad[i] = values<float>(static_cast<uint64_t>(i), 35);
    momentum[i] = values<float>(static_cast<uint64_t>(i + 9), 35);
    params[i] = view(grad[i], momentum[i]);
  }
  const std::vector<Piece> pieces = {piece(2, 5, 7, 0, 7, 0), piece(1, 5, 6, 1, 7, 35),
                                     piece(0, 5, 7, 0, 7, 65)};
  std::vector<bf16> message(100);
  const auto pack = [&] {
    Findings findings;
    host.ops().pack_direction(*host.stream, pieces, {.params = params, .groups = groups},
                              {.data = message.data(), .dtype = DType::kBF16}, &findings);
    host.finish();
    return findings;
  };
  const auto poisoned = [&](std::vector<float>& list, size_t at, float value) {
    std::swap(list[at], value);
    const Findings findings = pack();
    std::swap(list[at], value);
    return findings;
  };
  REQUIRE(pack().nonfinite == 0);
  for (size_t i = 0; i < 35; ++i) {
    for (const float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
      REQUIRE(poisoned(grad[2], i, bad).first_param == 2);
      REQUIRE(poisoned(momentum[2], i, bad).nonfinite == 1);
      // Column 0 of parameter 1 is no part of its piece.
      REQUIRE(poisoned(grad[1], i, bad).nonfinite == (i % 7 == 0 ? 0 : 1));
    }
  }
  grad[2][3] = inf;
  REQUIRE(poisoned(grad[0], 30, inf).first_param == 0);
  REQUIRE(poisoned(grad[1], 30, inf).first_param == 1);
}

TEST_CASE("host pack_direction: a gradient that overflows by its scale is found", "[unit][host]") {
  MuonScalars groups[1];
  groups[0].grad_scale = 1e3f;
  groups[0].nesterov = 0;
  std::vector<float> grad = {1e36f}, momentum = {0.0f}, message = {0.0f};
  const ParamView params[] = {view(grad, momentum)};
  const std::vector<Piece> pieces = {piece(0, 1, 1, 0, 1, 0)};
  Findings findings;
  OnHost host;
  host.ops().pack_direction(*host.stream, pieces, {.params = params, .groups = groups},
                            {.data = message.data(), .dtype = DType::kF32}, &findings);
  host.finish();
  REQUIRE(findings.nonfinite == 1);
}

TEST_CASE("host pack_direction: an unknown dtype is an error, not a crash", "[unit][host]") {
  std::vector<float> grad(4), momentum(4), message(4);
  ParamView params[] = {view(grad, momentum)};
  params[0].grad_dtype = DType::kF16;
  const MuonScalars groups[1] = {};
  const std::vector<Piece> pieces = {piece(0, 2, 2, 0, 2, 0)};
  Findings findings;
  OnHost host;
  host.ops().pack_direction(*host.stream, pieces, {.params = params, .groups = groups},
                            {.data = message.data(), .dtype = DType::kF32}, &findings);
  REQUIRE_THROWS_AS(host.finish(), Error);
  REQUIRE(host.device->error()->status() == Status::kNotSupported);
}

TEST_CASE("host scan: finds a non-finite gradient of an active listed parameter, at every place",
          "[unit][host][tsan]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  OnHost host(2);
  const int64_t sizes[] = {0, 1, 37, 200000};
  std::vector<float> grad[4], unused(1);
  std::vector<ParamView> params;
  for (size_t i = 0; i < 4; ++i) {
    grad[i] = values<float>(i, sizes[i]);
    params.push_back(view(grad[i], unused));
  }
  const auto scan = [&](std::vector<int32_t> list) {
    Findings findings;
    host.ops().scan(*host.stream, list, params.data(), &findings);
    host.finish();
    return findings;
  };
  REQUIRE(scan({0, 1, 2, 3}).nonfinite == 0);
  REQUIRE(scan({}).nonfinite == 0);
  for (size_t i = 0; i < 37; ++i) {
    const float kept = std::exchange(grad[2][i], nan);
    REQUIRE(scan({3, 2, 1}).first_param == 2);
    REQUIRE(scan({0, 1, 3}).nonfinite == 0);
    grad[2][i] = kept;
  }
  grad[3][199999] = nan;
  REQUIRE(scan({0, 1, 2, 3}).first_param == 3);
  grad[1][0] = nan;
  REQUIRE(scan({3, 1}).first_param == 1);
  params[1].active = params[3].active = 0;
  REQUIRE(scan({0, 1, 2, 3}).nonfinite == 0);
}

TEST_CASE("host copy and zero: exactly the named bytes change, with any number of threads",
          "[unit][host][tsan]") {
  for (const int threads : {1, 3}) {
    OnHost host(threads);
    for (const int64_t bytes : {0, 1, 100, 1000003}) {
      std::vector<unsigned char> from(static_cast<size_t>(bytes) + 2),
          to(static_cast<size_t>(bytes) + 2, 9);
      for (size_t i = 0; i < from.size(); ++i)
        from[i] = static_cast<unsigned char>(host_test::bits_at(1, static_cast<int64_t>(i)));
      host.ops().copy(*host.stream, to.data() + 1, from.data() + 1, bytes);
      host.finish();
      REQUIRE((to.front() == 9 && to.back() == 9));
      REQUIRE(std::equal(to.begin() + 1, to.end() - 1, from.begin() + 1));
      host.ops().fill(*host.stream, to.data() + 1, 0xa5, bytes);
      host.finish();
      REQUIRE((to.front() == 9 && to.back() == 9));
      REQUIRE(std::count(to.begin() + 1, to.end() - 1, 0xa5) == bytes);
    }
  }
}
