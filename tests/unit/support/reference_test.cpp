// Tests the float64 reference implementation, with which the other tests compare all other code.
#include "reference/reference.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "support/catalogue.hpp"

using namespace reference;

TEST_CASE("reference: svd has orthonormal factors, descending values, and gives the matrix back",
          "[unit][reference]") {
  for (const auto& shape : catalogue::kShapes) {
    INFO(shape.rows << " x " << shape.cols);
    const Matrix a = gaussian(shape.rows, shape.cols, 1);
    const Svd f = svd(a);
    const int64_t k = std::min(shape.rows, shape.cols);
    REQUIRE(static_cast<int64_t>(f.s.size()) == k);
    CHECK(std::is_sorted(f.s.rbegin(), f.s.rend()));
    CHECK(max_difference(assemble(f), a) <= 1e-12 * frobenius(a));
    CHECK(max_difference(multiply(transpose(f.u), f.u), identity(k)) <= 1e-11);
    CHECK(max_difference(multiply(transpose(f.v), f.v), identity(k)) <= 1e-11);
  }
}

TEST_CASE("reference: svd finds a known spectrum, with rank deficiency, too", "[unit][reference]") {
  const std::vector<double> spectrum = {5, 3, 3, 1e-3, 1e-9, 0, 0};
  const Svd f = random_svd(7, 12, spectrum, 3);
  const Matrix a = assemble(f);
  const Svd found = svd(a);
  for (size_t i = 0; i < spectrum.size(); ++i)
    CHECK(found.s[i] == Approx(spectrum[i]).margin(1e-14));
  const Matrix o = polar_factor(a, 1e-6);
  CHECK(frobenius(o) == Approx(2.0));  // four singular values are 1
  CHECK(max_difference(multiply(o, transpose(a)), transpose(multiply(o, transpose(a)))) <= 1e-8);
}

TEST_CASE("reference: Newton-Schulz changes only singular values, in both forms",
          "[unit][reference]") {
  const Svd f = random_svd(9, 14, {1, 0.9, 0.5, 0.3, 0.1, 0.05, 0.01, 0.003, 0.001}, 4);
  const Matrix a = assemble(f);
  const double safety = 1.02, norm = frobenius(a);
  Svd mapped = f;
  for (double& s : mapped.s) s = compose(lists::kPolarModded, s / (safety * norm));
  const Matrix expected = assemble(mapped);
  CHECK(max_difference(newton_schulz(lists::kPolarModded, safety, a), expected) <= 1e-12);
  CHECK(max_difference(newton_schulz(lists::kPolarModded, safety, transpose(a)),
                       transpose(expected)) <= 1e-12);
  for (const std::vector<int>& restarts : {std::vector<int>{}, {2}, {1, 3}})
    CHECK(max_difference(newton_schulz_gram(lists::kPolarModded, restarts, safety, a), expected) <=
          1e-10);
  const auto e = spectral_error(expected, f, lists::kPolarModded, safety);
  CHECK(e.diagonal <= 1e-13);
  CHECK(e.off_diagonal <= 1e-13);
}

TEST_CASE("reference: ten Polar Express steps give the polar factor", "[unit][reference]") {
  const Matrix a = assemble(random_svd(8, 20, {1, 1, 0.8, 0.5, 0.2, 0.1, 0.05, 0.02}, 5));
  const Matrix o = newton_schulz(lists::kPolarReference, 1.01, a);
  // The last step uses the limit of the coefficients, for which u is not exactly 1. The published
  // digits end at 1e-15.
  CHECK(max_difference(o, polar_factor(a)) <= 1e-12);
}

TEST_CASE("reference: one Muon step of a 1 x 1 matrix, by hand", "[unit][reference]") {
  // The update of a 1 x 1 matrix is p(1 / safety) times the sign of u.
  const double p = compose(lists::kKellerJordan, 1.0);
  for (const bool heavy : {false, true}) {
    for (const bool nesterov : {false, true}) {
      Muon how;
      how.heavy_ball = heavy;
      how.nesterov = nesterov;
      how.momentum = 0.5;
      how.lr = 0.1;
      how.weight_decay = 0.2;
      how.list = lists::kKellerJordan;
      Matrix w(1, 1), m(1, 1), g(1, 1);
      w(0, 0) = 2, m(0, 0) = 3, g(0, 0) = -4;
      muon_step(how, w, m, g);
      const double buffer = heavy ? 0.5 * 3 - 4 : 0.5 * 3 - 0.5 * 4;
      const double u = !nesterov ? buffer : heavy ? -4 + 0.5 * buffer : -0.5 * 4 + 0.5 * buffer;
      CHECK(m(0, 0) == buffer);
      CHECK(w(0, 0) == Approx(2 * (1 - 0.02) - 0.1 * 0.2 * std::copysign(p, u)));
    }
  }
}

TEST_CASE("reference: the first AdamW step, by hand, in both forms", "[unit][reference]") {
  AdamW how;
  how.lr = 0.5;
  how.eps = 0.25;
  how.weight_decay = 0.1;
  std::vector<double> w = {2}, m = {0}, v = {0};
  adamw_step(how, 1, w, m, v, {-3});
  // In the first step, the bias correction cancels the factors 1 - beta: m' = g and v' = g^2.
  CHECK(w[0] == Approx(2 - 0.5 * 0.1 * 2 - 0.5 * (-3) / (3 + 0.25)));
  how.folded = true;
  w = {2}, m = {0}, v = {0};
  adamw_step(how, 1, w, m, v, {-3});
  CHECK(w[0] == Approx(2 - 0.5 * 0.1 * 2 - 0.5 * (-3) / (3 + 0.25 / std::sqrt(0.05))));
}

TEST_CASE("reference: a matrix in blocks, and its divisor, by hand", "[unit][reference]") {
  const std::vector<Part> blocks = cut_into({whole_matrix(5, 3)}, 2, 2);
  REQUIRE(blocks.size() == 4);
  CHECK(blocks[0].rows == std::vector<int64_t>{0, 1, 2});
  CHECK(blocks[3].rows == std::vector<int64_t>{3, 4});
  CHECK(blocks[3].cols == std::vector<int64_t>{2});
  // The blocks have two rows each, except the last one, which has one row.
  CHECK(cut_into({whole_matrix(5, 1)}, 4, 1).size() == 3);
  // The norm of u is 5, and the coefficients give the identity.
  Matrix u(1, 2);
  u(0, 0) = 3, u(0, 1) = -4;
  Muon how;
  how.list = {{1, 0, 0}};
  how.eps = 20;
  const double divisors[] = {5, 25, 20};
  for (int i = 0; i < 3; ++i) {
    how.normalize = static_cast<Normalize>(i);
    CHECK(max_difference(orthogonalized(how, u), scale(1 / divisors[i], u)) <= 1e-15);
  }
  // The factor of a part multiplies its decay and its update. For a 1 x 1 matrix, the update is the
  // sign.
  how.normalize = Normalize::kPrescaled;
  how.nesterov = false;
  how.lr = 0.5;
  how.weight_decay = 0.25;
  how.scale = Scale::kNone;
  Matrix w(1, 2), m(1, 2);
  w(0, 0) = 1, w(0, 1) = 1;
  std::vector<std::vector<double>> moments;
  muon_step(how, {{{0}, {0}, 1.0}, {{0}, {1}, 3.0}}, w, m, u, moments);
  CHECK(w(0, 0) == Approx(1 - 0.5 * 0.25 - 0.5));
  CHECK(w(0, 1) == Approx(1 - 1.5 * 0.25 + 1.5));
}

TEST_CASE("reference: random bits are those of Philox", "[unit][reference]") {
  // A test vector of Random123 (kat_vectors, philox4x32 with 10 rounds).
  const uint32_t words[] = {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u};
  for (uint64_t e = 0; e < 8; ++e)
    CHECK(random_bits(0, 0, 0, e) == (words[e / 2] >> 16 * (e % 2) & 0xffffu));
  CHECK(rounded_at_random(1 + 0x1p-8, 0x8000) == 1 + 0x1p-7);
  CHECK(rounded_at_random(1 + 0x1p-8, 0x7fff) == 1);
}
