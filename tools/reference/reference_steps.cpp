#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "reference/reference.hpp"

namespace reference {

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

namespace {

/// Scales all rows to the root mean square of their norms. Does not change zero rows.
Matrix equilibrated(Matrix u) {
  const double wanted = frobenius(u) / std::sqrt(static_cast<double>(u.rows));
  for (int64_t i = 0; i < u.rows; ++i) {
    double squares = 0;
    for (int64_t j = 0; j < u.cols; ++j) squares += u(i, j) * u(i, j);
    for (int64_t j = 0; squares > 0 && j < u.cols; ++j) u(i, j) *= wanted / std::sqrt(squares);
  }
  return u;
}

/// Applies Newton-Schulz to u without equilibrating or renormalizing it.
Matrix iterated(const Muon& how, const Matrix& u) {
  if (u.rows > u.cols) return transpose(iterated(how, transpose(u)));
  if (how.aol) return newton_schulz_steps(how.list, aol_scaled(how.safety, u));
  const double norm = how.safety * frobenius(u);
  if (norm == 0) return u;
  const double divisor = how.normalize == Normalize::kAddEps   ? norm + how.eps
                         : how.normalize == Normalize::kMaxEps ? std::fmax(norm, how.eps)
                                                               : norm;
  return newton_schulz_steps(how.list, scale(1 / divisor, u));
}

}  // namespace

Matrix orthogonalized(const Muon& how, const Matrix& u) {
  const Matrix out = iterated(how, how.equilibrate ? equilibrated(u) : u);
  if (!how.renormalize) return out;
  const double wanted = std::sqrt(static_cast<double>(std::min(u.rows, u.cols)));
  return scale(wanted / std::fmax(frobenius(out), 1e-6), out);
}

Part whole_matrix(int64_t rows, int64_t cols) {
  Part out;
  out.rows.resize(static_cast<size_t>(rows));
  out.cols.resize(static_cast<size_t>(cols));
  std::iota(out.rows.begin(), out.rows.end(), 0);
  std::iota(out.cols.begin(), out.cols.end(), 0);
  return out;
}

namespace {

std::vector<std::vector<int64_t>> chunks(const std::vector<int64_t>& indices, int64_t count) {
  const auto size = static_cast<size_t>((std::ssize(indices) + count - 1) / count);
  std::vector<std::vector<int64_t>> out;
  for (size_t at = 0; at < indices.size(); at += size) {
    const size_t end = at + size < indices.size() ? at + size : indices.size();
    out.emplace_back(indices.begin() + static_cast<std::ptrdiff_t>(at),
                     indices.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return out;
}

}  // namespace

std::vector<Part> cut_into(const std::vector<Part>& parts, int64_t r, int64_t c) {
  std::vector<Part> out;
  for (const Part& part : parts)
    for (const auto& rows : chunks(part.rows, r))
      for (const auto& cols : chunks(part.cols, c))
        out.push_back({rows, cols, part.lr_factor, part.normuon_columns});
  return out;
}

void muon_step(const Muon& how, const std::vector<Part>& parts, Matrix& w, Matrix& m,
               const Matrix& g, std::vector<std::vector<double>>& moments) {
  const double mu = how.momentum, taken = how.heavy_ball ? 1.0 : 1 - mu;
  m = add(mu, m, taken, g);
  Matrix u = how.nesterov ? add(taken, g, mu, m) : m;
  if (how.corrected_at > 0) {
    const auto t = static_cast<double>(how.corrected_at);
    const double of_g = how.nesterov ? taken / (1 - std::pow(mu, t)) : 0;
    const double of_m = how.nesterov ? mu / (1 - std::pow(mu, t + 1)) : 1 / (1 - std::pow(mu, t));
    u = add(of_g, g, of_m, m);
  }
  u = rounded(u, how.transport);
  if (how.normuon) moments.resize(parts.size());
  for (size_t p = 0; p < parts.size(); ++p) {
    const Part& part = parts[p];
    Matrix o(std::ssize(part.rows), std::ssize(part.cols));
    for (int64_t i = 0; i < o.rows; ++i)
      for (int64_t j = 0; j < o.cols; ++j)
        o(i, j) = u(part.rows[static_cast<size_t>(i)], part.cols[static_cast<size_t>(j)]);
    o = orthogonalized(how, o);
    if (how.normuon && std::min(o.rows, o.cols) > 1)  // do not normalize a single row or column
      o = part.normuon_columns ? transpose(normuon(transpose(o), how.normuon_beta2, moments[p]))
                               : normuon(o, how.normuon_beta2, moments[p]);
    o = rounded(o, how.transport);
    const double lr = how.lr * part.lr_factor;
    const double rate = lr * how.scale_times * scale_factor(how.scale, o.rows, o.cols);
    for (int64_t i = 0; i < o.rows; ++i) {
      for (int64_t j = 0; j < o.cols; ++j) {
        double& x = w(part.rows[static_cast<size_t>(i)], part.cols[static_cast<size_t>(j)]);
        x = decayed(how.decay, lr, how.weight_decay, x, o(i, j)) - rate * o(i, j);
      }
    }
  }
}

void muon_step(const Muon& how, Matrix& w, Matrix& m, const Matrix& g, std::vector<double>* v) {
  std::vector<Part> parts = {whole_matrix(w.rows, w.cols)};
  parts[0].normuon_columns = how.normuon_columns;
  std::vector<std::vector<double>> moments;
  if (v) moments.push_back(*v);
  muon_step(how, parts, w, m, g, moments);
  if (v) *v = moments[0];
}

void adamw_step(const AdamW& how, int64_t t, std::vector<double>& w, std::vector<double>& m,
                std::vector<double>& v, const std::vector<double>& g) {
  const double c1 = 1 - std::pow(how.beta1, static_cast<double>(t));
  const double c2 = 1 - std::pow(how.beta2, static_cast<double>(t));
  for (size_t i = 0; i < w.size(); ++i) {
    m[i] = how.beta1 * m[i] + (1 - how.beta1) * g[i];
    v[i] = how.beta2 * v[i] + (1 - how.beta2) * g[i] * g[i];
    const double c1_next = 1 - std::pow(how.beta1, static_cast<double>(t + 1));
    const double mean =
        how.nesterov ? how.beta1 * m[i] / c1_next + (1 - how.beta1) * g[i] / c1 : m[i] / c1;
    const double step = how.folded ? std::sqrt(c2) / c1 * m[i] / (std::sqrt(v[i]) + how.eps)
                                   : mean / (std::sqrt(v[i] / c2) + how.eps);
    w[i] = decayed(how.decay, how.lr, how.weight_decay, w[i], step) - how.lr * step;
  }
}

uint32_t random_bits(uint64_t seed, uint64_t step, uint32_t param, uint64_t element) {
  const uint64_t block = element / 8;
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  uint32_t c[4] = {low(block), high(block), param, low(step)};
  uint32_t k[2] = {low(seed), high(seed) ^ high(step)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xd2511f53} * c[0], b = uint64_t{0xcd9e8d57} * c[2];
    const uint32_t next[4] = {high(b) ^ c[1] ^ k[0], low(b), high(a) ^ c[3] ^ k[1], low(a)};
    for (int i = 0; i < 4; ++i) c[i] = next[i];
    k[0] += 0x9e3779b9u;
    k[1] += 0xbb67ae85u;
  }
  return c[element / 2 % 4] >> 16 * (element % 2) & 0xffffu;
}

double rounded_at_random(double weight, uint32_t bits) {
  const auto pattern = std::bit_cast<uint32_t>(static_cast<float>(weight));
  return std::bit_cast<float>((pattern + bits) & 0xffff0000u);
}

}  // namespace reference
