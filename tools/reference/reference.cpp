#include "reference/reference.hpp"

#include <algorithm>
#include <cmath>

namespace reference {

double compose(const List& list, double x) {
  for (const Triple& t : list) x = t.a * x + t.b * x * x * x + t.c * x * x * x * x * x;
  return x;
}

double gain(const List& list, double safety) {
  double largest = 0;
  const int points = 4000;
  for (int i = 0; i <= points; ++i) {
    const double at = static_cast<double>(i) / points;
    double x = at * at / safety, slope = 1;  // more points near zero
    for (const Triple& t : list) {
      slope *= t.a + 3 * t.b * x * x + 5 * t.c * x * x * x * x;
      x = compose({t}, x);
    }
    largest = std::max(largest, std::fabs(slope));
  }
  return largest;
}

Matrix newton_schulz(const List& list, double safety, const Matrix& input) {
  if (input.rows > input.cols) return transpose(newton_schulz(list, safety, transpose(input)));
  const double norm = frobenius(input);
  if (norm == 0) return input;
  return newton_schulz_steps(list, scale(1 / (safety * norm), input));
}

Matrix aol_scaled(double safety, const Matrix& input) {
  const double norm = frobenius(input);
  if (norm == 0) return input;
  Matrix x = scale(1 / norm, input);
  const Matrix gram = multiply(x, transpose(x));
  for (int64_t i = 0; i < x.rows; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < x.rows; ++j) sum += std::fabs(gram(i, j));
    const double divisor = safety * std::sqrt(sum < 1e-7 ? 1e-7 : sum);
    for (int64_t j = 0; j < x.cols; ++j) x(i, j) /= divisor;
  }
  return x;
}

Matrix newton_schulz_steps(const List& list, Matrix x) {
  for (const Triple& t : list) {
    const Matrix a = multiply(x, transpose(x));
    const Matrix b = add(t.b, a, t.c, multiply(a, a));
    x = add(t.a, x, 1.0, multiply(b, x));
  }
  return x;
}

Matrix newton_schulz_gram(const List& list, const std::vector<int>& restarts, double safety,
                          const Matrix& input) {
  if (input.rows > input.cols)
    return transpose(newton_schulz_gram(list, restarts, safety, transpose(input)));
  const double norm = frobenius(input);
  if (norm == 0) return input;
  Matrix x = scale(1 / (safety * norm), input);
  Matrix r = multiply(x, transpose(x)), q = identity(x.rows);
  for (size_t i = 0; i < list.size(); ++i) {
    if (i > 0 &&
        std::find(restarts.begin(), restarts.end(), static_cast<int>(i)) != restarts.end()) {
      x = multiply(q, x);
      r = multiply(x, transpose(x));
      q = identity(x.rows);
    }
    const Matrix z = add(list[i].b, r, list[i].c, multiply(r, r));
    const Matrix factor = add(list[i].a, identity(x.rows), 1.0, z);
    q = multiply(factor, q);
    r = multiply(multiply(factor, r), factor);
  }
  return multiply(q, x);
}

SpectralError spectral_error(const Matrix& x, const Svd& f, const List& list, double safety) {
  double sum = 0;
  for (const double s : f.s) sum += s * s;
  const double norm = safety * std::sqrt(sum);
  const Matrix middle = multiply(multiply(transpose(f.u), x), f.v);
  SpectralError out{0, 0};
  for (int64_t i = 0; i < middle.rows; ++i) {
    for (int64_t j = 0; j < middle.cols; ++j) {
      const double s = f.s[static_cast<size_t>(i)] / norm;
      const double d = std::fabs(middle(i, j) - (i == j ? compose(list, s) : 0.0));
      double& worst = i == j ? out.diagonal : out.off_diagonal;
      if (!(d <= worst)) worst = d;  // also true for NaN
    }
  }
  return out;
}

}  // namespace reference
