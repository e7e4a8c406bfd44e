#include <algorithm>
#include <cmath>
#include <numeric>

#include "reference/reference.hpp"

namespace reference {

namespace {

/// Returns the result of the output function of SplitMix64.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

uint64_t address(uint64_t tensor, int64_t row, int64_t col, int64_t step) {
  uint64_t h = mix(tensor);
  h = mix(h ^ static_cast<uint64_t>(row));
  h = mix(h ^ static_cast<uint64_t>(col));
  return mix(h ^ static_cast<uint64_t>(step));
}

/// Returns a matrix with orthonormal columns. Applies Gram-Schmidt twice.
Matrix orthonormal(int64_t rows, int64_t cols, uint64_t seed) {
  Matrix q = gaussian(rows, cols, seed);
  for (int64_t j = 0; j < cols; ++j) {
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t k = 0; k < j; ++k) {
        double dot = 0;
        for (int64_t i = 0; i < rows; ++i) dot += q(i, k) * q(i, j);
        for (int64_t i = 0; i < rows; ++i) q(i, j) -= dot * q(i, k);
      }
    }
    double norm = 0;
    for (int64_t i = 0; i < rows; ++i) norm += q(i, j) * q(i, j);
    for (int64_t i = 0; i < rows; ++i) q(i, j) /= std::sqrt(norm);
  }
  return q;
}

}  // namespace

Matrix identity(int64_t n) {
  Matrix out(n, n);
  for (int64_t i = 0; i < n; ++i) out(i, i) = 1.0;
  return out;
}

Matrix transpose(const Matrix& a) {
  Matrix out(a.cols, a.rows);
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = 0; j < a.cols; ++j) out(j, i) = a(i, j);
  return out;
}

Matrix multiply(const Matrix& a, const Matrix& b) {
  Matrix out(a.rows, b.cols);
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t k = 0; k < a.cols; ++k)
      for (int64_t j = 0; j < b.cols; ++j) out(i, j) += a(i, k) * b(k, j);
  return out;
}

Matrix add(double alpha, const Matrix& a, double beta, const Matrix& b) {
  Matrix out(a.rows, a.cols);
  for (size_t i = 0; i < out.v.size(); ++i) out.v[i] = alpha * a.v[i] + beta * b.v[i];
  return out;
}

Matrix scale(double alpha, const Matrix& a) { return add(alpha, a, 0.0, a); }

double frobenius(const Matrix& a) {
  double largest = 0;
  for (const double x : a.v) largest = std::max(largest, std::fabs(x));
  if (largest == 0) return 0;
  double sum = 0;
  for (const double x : a.v) sum += (x / largest) * (x / largest);
  return largest * std::sqrt(sum);
}

double max_difference(const Matrix& a, const Matrix& b) {
  double out = a.rows == b.rows && a.cols == b.cols ? 0.0 : INFINITY;
  for (size_t i = 0; i < a.v.size() && i < b.v.size(); ++i) {
    const double d = std::fabs(a.v[i] - b.v[i]);
    if (!(d <= out)) out = d;  // also true for NaN
  }
  return out;
}

bool all_finite(const Matrix& a) {
  return std::all_of(a.v.begin(), a.v.end(), [](double x) { return std::isfinite(x); });
}

double half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, digits = bits & 1023;
  double x = std::ldexp(digits, -24);
  if (exponent > 0) x = std::ldexp(1024 + digits, exponent - 25);
  if (exponent == 31) x = digits ? std::nan("") : std::numeric_limits<double>::infinity();
  return bits >> 15 ? -x : x;
}

uint16_t half_bits(double x) {
  const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const double a = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7e00;
  int exponent = -14;  // exponent of the leading digit; also -14 for subnormal values
  if (a >= std::ldexp(1.0, -14) && std::isfinite(a)) exponent = std::ilogb(a);
  if (!std::isfinite(a) || exponent > 15) return sign | 0x7c00;
  // Bit patterns are consecutive, so rounding up to a power of two gives the next exponent, or
  // infinity.
  const double digits = std::nearbyint(std::ldexp(a, 10 - exponent));
  return sign | static_cast<uint16_t>((exponent + 14) * 1024 + static_cast<int>(digits));
}

Matrix rounded(const Matrix& a, muonrt::DType dtype) {
  Matrix out = a;
  for (double& x : out.v) {
    const float f = static_cast<float>(x);
    x = dtype == muonrt::DType::kBF16  ? muonrt::to_f32(muonrt::to_bf16(f))
        : dtype == muonrt::DType::kF16 ? half_value(half_bits(f))
                                       : f;
  }
  return out;
}

double value_at(uint64_t tensor, int64_t row, int64_t col, int64_t step) {
  const auto bits = static_cast<double>(address(tensor, row, col, step) >> 40);  // 24 bits
  return bits / 8388608.0 - 1.0;
}

Matrix values(uint64_t tensor, int64_t rows, int64_t cols, int64_t step) {
  Matrix out(rows, cols);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) out(i, j) = value_at(tensor, i, j, step);
  return out;
}

Matrix gaussian(int64_t rows, int64_t cols, uint64_t seed) {
  Matrix out(rows, cols);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      const double u1 = (static_cast<double>(address(seed, i, j, 1) >> 11) + 0.5) * 0x1p-53;
      const double u2 = static_cast<double>(address(seed, i, j, 2) >> 11) * 0x1p-53;
      out(i, j) = std::sqrt(-2 * std::log(u1)) * std::cos(6.283185307179586 * u2);
    }
  }
  return out;
}

Svd svd(const Matrix& a) {
  if (a.rows < a.cols) {
    Svd f = svd(transpose(a));
    std::swap(f.u, f.v);
    return f;
  }
  // The rows of w are the columns of a. Rotate pairs of rows until all rows are orthogonal.
  Matrix w = transpose(a), v = identity(a.cols);
  const int64_t n = a.cols, m = a.rows;
  for (int sweep = 0; sweep < 60; ++sweep) {
    bool rotated = false;
    for (int64_t p = 0; p < n; ++p) {
      for (int64_t q = p + 1; q < n; ++q) {
        double pp = 0, qq = 0, pq = 0;
        for (int64_t i = 0; i < m; ++i) {
          pp += w(p, i) * w(p, i);
          qq += w(q, i) * w(q, i);
          pq += w(p, i) * w(q, i);
        }
        if (std::fabs(pq) <= 1e-15 * std::sqrt(pp * qq)) continue;
        rotated = true;
        const double zeta = (qq - pp) / (2 * pq);
        const double t = (zeta >= 0 ? 1 : -1) / (std::fabs(zeta) + std::sqrt(1 + zeta * zeta));
        const double c = 1 / std::sqrt(1 + t * t), s = c * t;
        const auto rotate = [&](Matrix& x, int64_t size) {
          for (int64_t i = 0; i < size; ++i) {
            const double xp = x(p, i), xq = x(q, i);
            x(p, i) = c * xp - s * xq;
            x(q, i) = s * xp + c * xq;
          }
        };
        rotate(w, m);
        rotate(v, n);
      }
    }
    if (!rotated) break;
  }
  std::vector<double> norms;
  for (int64_t p = 0; p < n; ++p) {
    double sum = 0;
    for (int64_t i = 0; i < m; ++i) sum += w(p, i) * w(p, i);
    norms.push_back(std::sqrt(sum));
  }
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t x, int64_t y) {
    return norms[static_cast<size_t>(x)] > norms[static_cast<size_t>(y)];
  });
  Svd f{Matrix(m, n), {}, Matrix(n, n)};
  for (int64_t k = 0; k < n; ++k) {
    const int64_t p = order[static_cast<size_t>(k)];
    const double norm = norms[static_cast<size_t>(p)];
    f.s.push_back(norm);
    for (int64_t i = 0; i < m; ++i) f.u(i, k) = norm > 0 ? w(p, i) / norm : 0;
    for (int64_t i = 0; i < n; ++i) f.v(i, k) = v(p, i);
  }
  return f;
}

Matrix polar_factor(const Matrix& a, double cutoff) {
  Svd f = svd(a);
  const double least = f.s.empty() ? 0.0 : cutoff * f.s[0];
  for (double& s : f.s) s = s > least ? 1.0 : 0.0;
  return assemble(f);
}

Svd random_svd(int64_t rows, int64_t cols, const std::vector<double>& spectrum, uint64_t seed) {
  const int64_t k = std::min(rows, cols);
  return {orthonormal(rows, k, mix(seed)), spectrum, orthonormal(cols, k, mix(seed + 1))};
}

Matrix assemble(const Svd& f) {
  Matrix us = f.u;
  for (int64_t i = 0; i < us.rows; ++i)
    for (int64_t j = 0; j < us.cols; ++j) us(i, j) *= f.s[static_cast<size_t>(j)];
  return multiply(us, transpose(f.v));
}

}  // namespace reference
