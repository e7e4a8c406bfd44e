#include "train/reference_gpt.hpp"

#include <algorithm>
#include <cmath>

namespace muonrt::train::test {
namespace {

using Vec = std::vector<double>;

Vec norm(const Vec& x, const Vec& gain) {
  double squares = 0.0;
  for (const double v : x) squares += v * v;
  const double root = std::sqrt(squares / double(x.size()) + 1e-6);
  Vec y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] / root * gain[i];
  return y;
}

// Returns w x. The matrix w is (out, in) in row-major order.
Vec times(const Vec& w, const Vec& x) {
  Vec y(w.size() / x.size(), 0.0);
  for (size_t o = 0; o < y.size(); ++o) {
    for (size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
  }
  return y;
}

void add(Vec& x, const Vec& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

double gelu(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

// Returns the output of attention at position t over positions 0..t, for all heads.
// @param most  The largest input of the softmax so far, for each head; updated. May be null.
Vec attend(int64_t heads, size_t t, const std::vector<Vec>& q, const std::vector<Vec>& k,
           const std::vector<Vec>& v, double* most) {
  const size_t d = q[t].size();
  const size_t width = d / static_cast<size_t>(heads);
  Vec out(d, 0.0);
  for (size_t first = 0; first < d; first += width) {
    Vec weight(t + 1);
    double total = 0.0;
    for (size_t s = 0; s <= t; ++s) {
      double dot = 0.0;
      for (size_t i = first; i < first + width; ++i) dot += q[t][i] * k[s][i];
      const double score = dot / std::sqrt(double(width));
      if (most) most[first / width] = std::max(most[first / width], score);
      weight[s] = std::exp(score);
      total += weight[s];
    }
    for (size_t s = 0; s <= t; ++s) {
      for (size_t i = first; i < first + width; ++i) out[i] += weight[s] / total * v[s][i];
    }
  }
  return out;
}

}  // namespace

std::vector<Vec> reference_logits(const Config& config, const std::vector<Vec>& params,
                                  const uint8_t* tokens, int64_t length, double* attention_max) {
  const auto d = static_cast<size_t>(config.d_model);
  const auto count = static_cast<size_t>(length);
  auto next = params.begin();
  const Vec& wte = *next++;
  const Vec& wpe = *next++;
  std::vector<Vec> x(count, Vec(d));
  for (size_t t = 0; t < count; ++t) {
    for (size_t i = 0; i < d; ++i) x[t][i] = wte[tokens[t] * d + i] + wpe[t * d + i];
  }
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const Vec &norm1 = next[0], &wq = next[1], &wk = next[2], &wv = next[3], &wo = next[4];
    const Vec &norm2 = next[5], &up = next[6], &down = next[7];
    next += 8;
    std::vector<Vec> q, k, v;
    for (const Vec& row : x) {
      const Vec n = norm(row, norm1);
      q.push_back(times(wq, n));
      k.push_back(times(wk, n));
      v.push_back(times(wv, n));
    }
    for (size_t t = 0; t < count; ++t) {
      double* most = attention_max ? attention_max + layer * config.heads : nullptr;
      add(x[t], times(wo, attend(config.heads, t, q, k, v, most)));
      Vec hidden = times(up, norm(x[t], norm2));
      for (double& h : hidden) h = gelu(h);
      add(x[t], times(down, hidden));
    }
  }
  const Vec& last_norm = next[0];
  const Vec& head = next[1];
  std::vector<Vec> logits;
  for (const Vec& row : x) logits.push_back(times(head, norm(row, last_norm)));
  return logits;
}

double reference_loss(const Config& config, const std::vector<Vec>& params,
                      const std::vector<uint8_t>& tokens) {
  double loss = 0.0;
  const auto window = static_cast<size_t>(config.context + 1);
  for (size_t first = 0; first < tokens.size(); first += window) {
    const uint8_t* sequence = tokens.data() + first;
    const auto logits = reference_logits(config, params, sequence, config.context);
    for (size_t t = 0; t < logits.size(); ++t) {
      double total = 0.0;
      for (const double z : logits[t]) total += std::exp(z);
      loss += std::log(total) - logits[t][sequence[t + 1]];
    }
  }
  return loss;
}

}  // namespace muonrt::train::test
