#include "textbook/textbook.hpp"

#include <algorithm>
#include <cmath>

namespace textbook {

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
      if (!(d <= worst)) worst = d;  // NaN is kept
    }
  }
  return out;
}

double scale_factor(Scale rule, int64_t rows, int64_t cols) {
  const double r = static_cast<double>(rows), c = static_cast<double>(cols);
  switch (rule) {
    case Scale::kOriginal:
      return r > c ? std::sqrt(r / c) : 1.0;
    case Scale::kMatchRms:
      return 0.2 * std::sqrt(r > c ? r : c);
    case Scale::kRatio:
      return std::sqrt(r / c);
    case Scale::kMaxDim:
      return std::sqrt(r > c ? r : c);
    case Scale::kNone:
      return 1.0;
  }
  return NAN;
}

double decayed(Decay kind, double rate, double weight_decay, double w, double u) {
  switch (kind) {
    case Decay::kDecoupled:
      return w - rate * weight_decay * w;
    case Decay::kIndependent:
      return w - weight_decay * w;
    case Decay::kLrSquared:
      return w - rate * rate * weight_decay * w;
    case Decay::kCautious:
      return u * w >= 0 ? w - rate * weight_decay * w : w;
  }
  return NAN;
}

Matrix normuon(const Matrix& o, double beta2, std::vector<double>& v) {
  Matrix out = o;
  v.resize(static_cast<size_t>(o.rows), 0.0);
  for (int64_t i = 0; i < o.rows; ++i) {
    double mean = 0;
    for (int64_t j = 0; j < o.cols; ++j) mean += o(i, j) * o(i, j) / static_cast<double>(o.cols);
    double& moment = v[static_cast<size_t>(i)];
    moment = beta2 * moment + (1 - beta2) * mean;
    for (int64_t j = 0; j < o.cols; ++j) out(i, j) = o(i, j) / (std::sqrt(moment) + 1e-10);
  }
  return scale(frobenius(o) / (frobenius(out) + 1e-10), out);
}

void muon_step(const Muon& how, Matrix& w, Matrix& m, const Matrix& g, std::vector<double>* v) {
  const double mu = how.momentum;
  Matrix u;
  if (how.heavy_ball) {
    m = add(mu, m, 1.0, g);
    u = how.nesterov ? add(1.0, g, mu, m) : m;
  } else {
    m = add(mu, m, 1 - mu, g);
    u = how.nesterov ? add(1 - mu, g, mu, m) : m;
  }
  Matrix o = newton_schulz(how.list, how.safety, rounded(u, how.transport));
  if (how.normuon)
    o = how.normuon_columns ? transpose(normuon(transpose(o), how.normuon_beta2, *v))
                            : normuon(o, how.normuon_beta2, *v);
  o = rounded(o, how.transport);
  const double rate = how.lr * how.scale_times * scale_factor(how.scale, w.rows, w.cols);
  for (size_t i = 0; i < w.v.size(); ++i)
    w.v[i] = decayed(how.decay, how.lr, how.weight_decay, w.v[i], o.v[i]) - rate * o.v[i];
}

void adamw_step(const AdamW& how, int64_t t, std::vector<double>& w, std::vector<double>& m,
                std::vector<double>& v, const std::vector<double>& g) {
  const double c1 = 1 - std::pow(how.beta1, static_cast<double>(t));
  const double c2 = 1 - std::pow(how.beta2, static_cast<double>(t));
  for (size_t i = 0; i < w.size(); ++i) {
    m[i] = how.beta1 * m[i] + (1 - how.beta1) * g[i];
    v[i] = how.beta2 * v[i] + (1 - how.beta2) * g[i] * g[i];
    const double step = how.folded ? std::sqrt(c2) / c1 * m[i] / (std::sqrt(v[i]) + how.eps)
                                   : (m[i] / c1) / (std::sqrt(v[i] / c2) + how.eps);
    w[i] = decayed(how.decay, how.lr, how.weight_decay, w[i], step) - how.lr * step;
  }
}

}  // namespace textbook
