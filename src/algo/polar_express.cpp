#include "algo/polar_express.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

namespace muonrt {
namespace {

using Real = long double;

struct Quintic {
  Real a, b, c;
  Real operator()(Real x) const { return x * (a + x * x * (b + x * x * c)); }
  Quintic times(Real f) const { return {a * f, b * f, c * f}; }
  /// Returns the polynomial p(x / f).
  Quintic stretched(Real f) const { return {a / f, b / (f * f * f), c / (f * f * f * f * f)}; }
};

/// Solves a linear system by elimination with partial pivoting. The last column is the right-hand
/// side.
std::array<Real, 4> solve(std::array<std::array<Real, 5>, 4> m) {
  for (size_t k = 0; k < 4; ++k) {
    size_t pivot = k;
    for (size_t i = k + 1; i < 4; ++i)
      if (std::fabs(m[i][k]) > std::fabs(m[pivot][k])) pivot = i;
    std::swap(m[k], m[pivot]);
    for (size_t i = k + 1; i < 4; ++i) {
      const Real f = m[i][k] / m[k][k];
      for (size_t j = k; j < 5; ++j) m[i][j] -= f * m[k][j];
    }
  }
  std::array<Real, 4> x{};
  for (size_t k = 4; k-- > 0;) {
    Real s = m[k][4];
    for (size_t j = k + 1; j < 4; ++j) s -= m[k][j] * x[j];
    x[k] = s / m[k][k];
  }
  return x;
}

/// Returns the odd quintic that is closest to 1 on [l, u]. Uses an exchange algorithm on four
/// points.
Quintic minimax(Real l, Real u) {
  // If l / u is near 1, the four points nearly coincide, and the exchange algorithm loses all
  // digits. The function then returns the known polynomial of the limit.
  if (l / u >= 1 - Real(5e-6)) {
    return {Real(15) / 8 / u, -Real(10) / 8 / (u * u * u), Real(3) / 8 / (u * u * u * u * u)};
  }
  constexpr int kMaxRounds = 60;
  Real q = (3 * l + u) / 4, r = (l + 3 * u) / 4, error = 2;
  Quintic best{};
  for (int round = 0; round < kMaxRounds; ++round) {
    std::array<std::array<Real, 5>, 4> m{};
    const std::array<Real, 4> points = {l, q, r, u};
    for (size_t i = 0; i < 4; ++i) {
      const Real x = points[i], x3 = x * x * x;
      m[i] = {x, x3, x3 * x * x, i % 2 == 0 ? Real(1) : Real(-1), Real(1)};
    }
    const auto s = solve(m);
    best = {s[0], s[1], s[2]};
    const Real previous = std::exchange(error, s[3]);
    if (std::fabs(error - previous) <= Real(1e-17)) break;
    const Real disc = 9 * best.b * best.b - 20 * best.a * best.c;
    if (!(disc > 0)) break;  // near the limit, rounding makes the points equal
    const Real root = std::sqrt(disc);
    q = std::sqrt((-3 * best.b - root) / (10 * best.c));
    r = std::sqrt((-3 * best.b + root) / (10 * best.c));
    if (!(l < q && q < r && r < u)) break;
  }
  return best;
}

}  // namespace

std::vector<Coefficients> polar_express(int steps, double lower_bound, double cushion,
                                        double inner_safety) {
  std::vector<Coefficients> out;
  Real l = lower_bound, u = 1;
  for (int t = 0; t < steps; ++t) {
    const Real start = std::max(l, static_cast<Real>(cushion) * u);
    Quintic p = minimax(start, u);
    // The fit is for [start, u]. If start > l, the scaling centers the image of [l, u] at 1.
    if (start > l) p = p.times(2 / (p(l) + p(u)));
    if (t + 1 < steps) p = p.stretched(inner_safety);
    out.push_back({static_cast<double>(p.a), static_cast<double>(p.b), static_cast<double>(p.c)});
    // The published list continues with the changed polynomial instead of the polynomial of the
    // fit.
    l = p(l);
    u = 2 - l;
  }
  return out;
}

}  // namespace muonrt
