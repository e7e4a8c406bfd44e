// Host ops and plain loops, op by op: equal bits where only elements are touched, within the
// componentwise bound where sums are.
#include "support/reference_ops.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include "support/backends.hpp"
#include "support/tolerances.hpp"
#include "textbook/textbook.hpp"

using namespace muonrt;

namespace {

/// rows x cols (times count) with room after each row, filled from place and tensor.
struct Stored {
  MatrixBatch batch;
  std::vector<unsigned char> bytes;

  Stored(const Ops& ops, DType dtype, int64_t rows, int64_t cols, int64_t count, uint64_t tensor) {
    batch.dtype = dtype;
    batch.rows = rows;
    batch.cols = cols;
    batch.ld = ops.leading_dimension(cols, dtype);
    batch.count = count;
    batch.stride = rows * batch.ld + 5;
    bytes.assign(static_cast<size_t>(batch.stride * count * size_of(dtype)), 0xff);
    batch.data = bytes.data();
    for (int64_t k = 0; k < count; ++k)
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) set(k, i, j, textbook::value_at(tensor, i, j, k));
  }
  int64_t index(int64_t k, int64_t i, int64_t j) const {
    return k * batch.stride + i * batch.ld + j;
  }
  void set(int64_t k, int64_t i, int64_t j, double x) {
    reference::store(batch.data, batch.dtype, index(k, i, j), static_cast<float>(x));
  }
  double at(int64_t k, int64_t i, int64_t j) const {
    return reference::load(batch.data, batch.dtype, index(k, i, j));
  }
};

}  // namespace

TEST_CASE("ops: a product stays within its componentwise bound on every backend",
          "[unit][reference-ops]") {
  for (auto& backend : backends::all()) {
    for (const auto& [m, n, depth] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                                      {3, 5, 7},
                                      {17, 17, 33},
                                      {40, 70, 40},
                                      {65, 65, 300}}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        for (const bool transpose_b : {false, true}) {
          INFO(backend.name << ", " << m << " x " << n << " x " << depth << ", " << name_of(dtype)
                            << (transpose_b ? ", B transposed" : ""));
          Stored a(*backend.ops, dtype, m, depth, 2, 1);
          Stored b(*backend.ops, dtype, transpose_b ? n : depth, transpose_b ? depth : n, 2, 2);
          Stored d(*backend.ops, dtype, m, n, 2, 3), c(*backend.ops, dtype, m, n, 2, 4);
          Product p;
          p.a = a.batch, p.b = b.batch, p.c = c.batch, p.d = d.batch;
          p.transpose_b = transpose_b;
          p.alpha = 1.5f, p.beta = -0.75f, p.gamma = 3.25f;
          backend.ops->reserve(m, n, depth, dtype);
          backend.ops->multiply(*backend.stream, p);
          backend.wait();
          double worst = 0;
          for (int64_t k = 0; k < 2; ++k) {
            for (int64_t i = 0; i < m; ++i) {
              for (int64_t j = 0; j < n; ++j) {
                double sum = 0, magnitude = 0;
                for (int64_t l = 0; l < depth; ++l) {
                  const double x = a.at(k, i, l) * (transpose_b ? b.at(k, j, l) : b.at(k, l, j));
                  sum += x;
                  magnitude += std::fabs(x);
                }
                const double expected = 1.5 * sum - 0.75 * d.at(k, i, j) + (i == j ? 3.25 : 0);
                magnitude = 1.5 * magnitude + 0.75 * std::fabs(d.at(k, i, j)) + 3.25;
                worst = std::max(worst, std::fabs(c.at(k, i, j) - expected) /
                                            tolerance::product(depth, magnitude, expected, dtype));
              }
            }
          }
          CHECK(worst <= 1);
        }
      }
    }
  }
}

TEST_CASE("ops: a product with alpha 0 is beta D + gamma I to the bit", "[unit][reference-ops]") {
  for (auto& backend : backends::all()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const int64_t m = 37;
      Stored d(*backend.ops, dtype, m, m, 3, 6), c(*backend.ops, dtype, m, m, 3, 7);
      for (int64_t k = 0; k < 3; ++k)
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < i; ++j) d.set(k, i, j, d.at(k, j, i));
      Product p;
      p.a = d.batch, p.b = d.batch, p.c = c.batch, p.d = d.batch;
      p.transpose_b = true;
      p.symmetric = true;
      p.alpha = 0.0f, p.beta = 1.0f, p.gamma = 4.0625f;
      backend.ops->reserve(m, m, m, dtype);
      backend.ops->multiply(*backend.stream, p);
      backend.wait();
      bool equal = true;
      for (int64_t k = 0; k < 3; ++k) {
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < m; ++j) {
            float x = static_cast<float>(d.at(k, i, j)) + (i == j ? 4.0625f : 0.0f);
            if (dtype == DType::kBF16) x = to_f32(to_bf16(x));
            equal = equal && c.at(k, i, j) == static_cast<double>(x);
          }
        }
      }
      INFO(backend.name << ", " << name_of(dtype));
      CHECK(equal);
    }
  }
}

namespace {

/// Two parameters cut into pieces, a message, and everything the elementwise ops touch.
struct World {
  std::vector<float> f32[2][4];  // of each parameter: weight, gradient, momentum, master
  std::vector<uint16_t> weight16, grad16;
  ParamView params[2];
  MuonScalars groups[2];
  std::vector<Piece> pieces;
  std::vector<unsigned char> message;
  Findings findings;

  explicit World(DType transport, bool heavy_ball) {
    for (int p = 0; p < 2; ++p) {
      for (int which = 0; which < 4; ++which) {
        auto& v = f32[p][which];
        for (int64_t i = 0; i < kRows * kCols; ++i)
          v.push_back(static_cast<float>(
              textbook::value_at(static_cast<uint64_t>(10 * p + which), i / kCols, i % kCols, 0)));
      }
      ParamView& view = params[p];
      view.param = f32[p][0].data();
      view.grad = f32[p][1].data();
      view.momentum = f32[p][2].data();
      view.numel = kRows * kCols;
      view.group = p;
      groups[p] = {.momentum = 0.9f,
                   .heavy_ball = heavy_ball,
                   .nesterov = p,
                   .rate = 0.03f,
                   .decay = 0.001f,
                   .grad_scale = 0.5f};
    }
    // The second is bf16 with a master copy.
    for (const float x : f32[1][3]) weight16.push_back(to_bf16(x).bits);
    for (const float x : f32[1][1]) grad16.push_back(to_bf16(x).bits);
    params[1].param = weight16.data();
    params[1].grad = grad16.data();
    params[1].master = f32[1][3].data();
    params[1].form = WeightForm::kMaster;
    params[1].param_dtype = params[1].grad_dtype = DType::kBF16;
    int64_t packed = 0;
    const auto piece = [&](int32_t param, int64_t rows, int64_t cols, int64_t offset) {
      pieces.push_back({param, param, rows, cols, offset, kCols, packed, 0, 0, 0.7f});
      packed += rows * cols;
    };
    piece(0, 3, kCols, 0);
    piece(1, 5, 7, 4);
    piece(0, kRows - 3, 13, 3 * kCols);
    piece(1, 2, kCols, 6 * kCols);
    message.assign(static_cast<size_t>(packed * size_of(transport)), 0xff);
  }

  bool same(const World& other) const {
    for (int p = 0; p < 2; ++p)
      for (int which = 0; which < 4; ++which)
        if (std::memcmp(f32[p][which].data(), other.f32[p][which].data(),
                        f32[p][which].size() * sizeof(float)) != 0)
          return false;
    return weight16 == other.weight16 && message == other.message &&
           std::memcmp(&findings, &other.findings, sizeof findings) == 0;
  }
  static constexpr int64_t kRows = 9, kCols = 21;
};

void step(backends::Backend& backend, World& w, DType transport, bool pass) {
  backend.ops->pack_direction(*backend.stream, w.pieces, {.params = w.params, .groups = w.groups},
                              {.data = w.message.data(), .dtype = transport}, &w.findings);
  const int32_t list[] = {0, 1};
  backend.ops->scan(*backend.stream, list, w.params, &w.findings);
  Ballot ballot;
  backend.ops->cast_ballot(*backend.stream, &ballot, &w.findings, 7, 2, pass);
  backend.ops->commit_muon(*backend.stream, w.pieces, {.params = w.params, .groups = w.groups},
                           {.data = w.message.data(), .dtype = transport},
                           {.sum = &ballot, .world = 1, .stamp = 7});
  backend.wait();
}

}  // namespace

TEST_CASE("ops: a Muon step's elementwise half has equal bits on every backend",
          "[unit][reference-ops]") {
  auto plain = backends::reference();
  for (auto& backend : backends::all()) {
    for (const DType transport : {DType::kF32, DType::kBF16}) {
      for (const bool heavy_ball : {false, true}) {
        for (const int variant : {0, 1, 2, 3}) {  // plain, inactive, NaN gradient, voted down
          INFO(backend.name << ", " << name_of(transport) << ", variant " << variant);
          World a(transport, heavy_ball), b(transport, heavy_ball);
          const World before(transport, heavy_ball);
          for (World* w : {&a, &b}) {
            if (variant == 1) w->params[1].active = 0;
            if (variant == 2) w->f32[0][1][5] = std::numeric_limits<float>::quiet_NaN();
            step(w == &a ? plain : backend, *w, transport, variant != 3);
          }
          if (variant == 2) {
            CHECK(b.findings.nonfinite == 1);
            CHECK(b.findings.first_param == 0);
            CHECK(a.findings.first_param == 0);
            CHECK(a.f32[0][0] == b.f32[0][0]);
          } else {
            CHECK(a.same(b));
          }
          const bool moved = b.f32[0][0] != before.f32[0][0];
          CHECK(moved == (variant < 2));
          CHECK((b.weight16 != before.weight16) == (variant == 0));
        }
      }
    }
  }
}

TEST_CASE("ops: unpack and pack are inverse and equal on every backend", "[unit][reference-ops]") {
  for (auto& backend : backends::all()) {
    for (const DType transport : {DType::kF32, DType::kBF16}) {
      INFO(backend.name << ", " << name_of(transport));
      const Owned owned[] = {{0, 9, 12}, {1, 12, 9}};  // the second is stored transposed
      Stored first(*backend.ops, transport, 9, 12, 1, 50),
          second(*backend.ops, transport, 9, 12, 1, 51);
      const MatrixBatch matrices[] = {first.batch, second.batch};
      const std::vector<MatrixPiece> pieces = {
          {.matrix = 0, .rows = 9, .cols = 5, .row = 0, .col = 0, .packed_offset = 0},
          {.matrix = 1, .rows = 7, .cols = 9, .row = 0, .col = 0, .packed_offset = 45},
          {.matrix = 0, .rows = 9, .cols = 7, .row = 0, .col = 5, .packed_offset = 108},
          {.matrix = 1, .rows = 5, .cols = 9, .row = 7, .col = 0, .packed_offset = 171}};
      std::vector<unsigned char> in(static_cast<size_t>(216 * size_of(transport)), 0), out = in;
      for (int64_t i = 0; i < 216; ++i)
        reference::store(in.data(), transport, i, static_cast<float>(i - 100));
      Findings findings;
      backend.ops->unpack(*backend.stream, pieces, owned, matrices,
                          {.data = in.data(), .dtype = transport});
      backend.ops->pack(*backend.stream, pieces, owned, matrices,
                        {.data = out.data(), .dtype = transport}, &findings);
      backend.wait();
      CHECK(in == out);
      CHECK(findings.nonfinite == 0);
      // Element (8, 2) of the second matrix: piece 4, row 1 of 5, column 2 of 9; stored at (2, 8).
      CHECK(second.at(0, 2, 8) == 171 + 9 + 2 - 100);
      CHECK(first.at(0, 3, 6) == 108 + 3 * 7 + 1 - 100);
    }
  }
}

TEST_CASE("ops: AdamW has equal bits on every backend and the textbook's value",
          "[unit][reference-ops]") {
  for (auto& backend : backends::all()) {
    INFO(backend.name);
    const int64_t n = 1003;
    std::vector<float> w, g, m(n, 0.0f), v(n, 0.0f);
    std::vector<double> w64, m64(n, 0.0), v64(n, 0.0), g64;
    for (int64_t i = 0; i < n; ++i) {
      w.push_back(static_cast<float>(textbook::value_at(1, i, 0, 0)));
      g.push_back(static_cast<float>(textbook::value_at(2, i, 0, 0)));
      w64.push_back(w.back());
      g64.push_back(g.back());
    }
    auto w2 = w, m2 = m, v2 = v;
    textbook::AdamW how;
    how.lr = 0.01;
    auto plain = backends::reference();
    for (int64_t t = 1; t <= 3; ++t) {
      AdamScalars s;
      s.rate = 0.01f;
      s.decay = static_cast<float>(0.01 * how.weight_decay);
      s.correction1 = static_cast<float>(1 / (1 - std::pow(0.9, static_cast<double>(t))));
      s.correction2 = static_cast<float>(1 / (1 - std::pow(0.95, static_cast<double>(t))));
      const int32_t list[] = {0};
      const Ballot yes{1, t, 0, 0, 0};
      const auto run = [&](backends::Backend& b, std::vector<float>& weights,
                           std::vector<float>& first, std::vector<float>& second) {
        ParamView view;
        view.param = weights.data();
        view.grad = g.data();
        view.momentum = first.data();
        view.variance = second.data();
        view.numel = n;
        b.ops->commit_adamw(*b.stream, list, {}, {.params = &view, .adam = &s},
                            {.sum = &yes, .world = 1, .stamp = t});
        b.wait();
      };
      run(backend, w, m, v);
      run(plain, w2, m2, v2);
      textbook::adamw_step(how, t, w64, m64, v64, g64);
    }
    CHECK(w == w2);
    CHECK(m == m2);
    CHECK(v == v2);
    double worst = 0;
    for (size_t i = 0; i < w.size(); ++i)
      worst = std::max(worst, std::fabs(static_cast<double>(w[i]) - w64[i]));
    // Some ten roundings a step of weights below 1 and updates of 0.01.
    CHECK(worst <= 30 * tolerance::roundoff(DType::kF32));
  }
}
