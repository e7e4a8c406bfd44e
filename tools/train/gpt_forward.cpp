#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "train/gpt.hpp"
#include "train/layers.hpp"
#include "train/linear.hpp"

namespace muonrt::train {

template <class T>
void Gpt<T>::require_inputs(const uint8_t* tokens, int64_t count, const Workspace<T>& ws) const {
  if (ws.config() != config_) {
    throw std::runtime_error("workspace: made for another model; make one for this configuration");
  }
  if (config_.vocab >= 256) return;
  for (int64_t i = 0; i < count; ++i) {
    if (tokens[i] >= config_.vocab) {
      throw std::runtime_error("token " + std::to_string(int{tokens[i]}) + " at " +
                               std::to_string(i) + " is not below vocab " +
                               std::to_string(config_.vocab));
    }
  }
}

template <class T>
double Gpt<T>::forward_backward(const T* const* params, const uint8_t* tokens, int64_t sequences,
                                T grad_scale, T* const* grads, Workspace<T>& ws) const {
  return run(params, tokens, sequences, grad_scale, grads, ws);
}

template <class T>
double Gpt<T>::evaluate(const T* const* params, const uint8_t* tokens, int64_t sequences,
                        Workspace<T>& ws) const {
  return run(params, tokens, sequences, T{0}, nullptr, ws);
}

template <class T>
double Gpt<T>::run(const T* const* params, const uint8_t* tokens, int64_t sequences, T grad_scale,
                   T* const* grads, Workspace<T>& ws) const {
  const int64_t stride = config_.context + 1;
  require_inputs(tokens, sequences * stride, ws);
  double sum = 0.0;
  for (int64_t first = 0; first < sequences; first += ws.sequences()) {
    const int64_t count = std::min(ws.sequences(), sequences - first);
    const Pass pass{params, tokens + first * stride, stride, count, config_.context};
    forward(pass, ws);
    sum += loss(pass, grad_scale, ws);
    if (grads) backward(pass, grads, ws);
  }
  return sum;
}

template <class T>
void Gpt<T>::next_logits(const T* const* params, const uint8_t* tokens, int64_t length, T* logits,
                         Workspace<T>& ws) const {
  if (length < 1 || length > config_.context) {
    throw std::runtime_error("next_logits: " + std::to_string(length) +
                             " tokens given; give 1 to " + std::to_string(config_.context));
  }
  require_inputs(tokens, length, ws);
  const Pass pass{params, tokens, length, 1, length};
  forward(pass, ws);
  const int64_t d = config_.d_model;
  linear(1, d, config_.vocab, ws.normed + (length - 1) * d, params[ParamIndex::head(config_)],
         logits);
}

// Up to the last norm; the logits are left to the caller.
template <class T>
void Gpt<T>::forward(const Pass& pass, Workspace<T>& ws) const {
  const int64_t d = config_.d_model;
  T* first = ws.layers.front().x;
  embed(pass.tokens, pass.stride, pass.sequences, pass.length, d, pass.params[ParamIndex::kWte],
        pass.params[ParamIndex::kWpe], first);
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    const bool last = layer + 1 == config_.layers;
    forward_attention(pass, layer, ws);
    forward_mlp(pass, layer, last ? ws.x : ws.layers[static_cast<size_t>(layer + 1)].x, ws);
  }
  rms_norm(pass.rows(), d, ws.x, pass.params[ParamIndex::norm(config_)], ws.normed, ws.inv);
}

// x_mid = x + wo attention(norm1(x))
template <class T>
void Gpt<T>::forward_attention(const Pass& pass, int64_t layer, Workspace<T>& ws) const {
  auto& a = ws.layers[static_cast<size_t>(layer)];
  const int64_t rows = pass.rows();
  const int64_t d = config_.d_model;
  const int64_t head_dim = config_.head_dim();
  const int64_t length = pass.length;
  auto param = [&](ParamIndex::InLayer what) {
    return pass.params[ParamIndex::layer(layer, what)];
  };

  rms_norm(rows, d, a.x, param(ParamIndex::kNorm1), a.normed1, a.inv1);
  linear(rows, d, d, a.normed1, param(ParamIndex::kWq), a.q);
  linear(rows, d, d, a.normed1, param(ParamIndex::kWk), a.k);
  linear(rows, d, d, a.normed1, param(ParamIndex::kWv), a.v);

  const T scale = T{1} / std::sqrt(static_cast<T>(head_dim));
  for (int64_t s = 0; s < pass.sequences; ++s) {
    for (int64_t h = 0; h < config_.heads; ++h) {
      const int64_t at = s * length * d + h * head_dim;
      T* prob = a.prob + (s * config_.heads + h) * length * length;
      gemm(Trans::kNo, Trans::kYes, length, length, head_dim, a.q + at, d, a.k + at, d, T{0}, prob,
           length);
      T& largest = ws.attention_max[static_cast<size_t>(layer * config_.heads + h)];
      largest = std::max(largest, causal_softmax(length, scale, prob));
      gemm(Trans::kNo, Trans::kNo, length, head_dim, length, prob, length, a.v + at, d, T{0},
           a.mixed + at, d);
    }
  }
  std::copy_n(a.x, rows * d, a.x_mid);
  linear(rows, d, d, a.mixed, param(ParamIndex::kWo), a.x_mid, Write::kAdd);
}

// out = x_mid + w_down gelu(w_up norm2(x_mid))
template <class T>
void Gpt<T>::forward_mlp(const Pass& pass, int64_t layer, T* out, Workspace<T>& ws) const {
  auto& a = ws.layers[static_cast<size_t>(layer)];
  const int64_t rows = pass.rows();
  const int64_t d = config_.d_model;
  const int64_t wide = config_.d_mlp();
  auto param = [&](ParamIndex::InLayer what) {
    return pass.params[ParamIndex::layer(layer, what)];
  };

  rms_norm(rows, d, a.x_mid, param(ParamIndex::kNorm2), a.normed2, a.inv2);
  linear(rows, d, wide, a.normed2, param(ParamIndex::kWUp), a.up);
  gelu(rows * wide, a.up, a.act);
  std::copy_n(a.x_mid, rows * d, out);
  linear(rows, wide, d, a.act, param(ParamIndex::kWDown), out, Write::kAdd);
}

// Sum of the token losses; the logits turn into their gradients.
template <class T>
double Gpt<T>::loss(const Pass& pass, T grad_scale, Workspace<T>& ws) const {
  linear(pass.rows(), config_.d_model, config_.vocab, ws.normed,
         pass.params[ParamIndex::head(config_)], ws.logits);
  double sum = 0.0;
  for (int64_t s = 0; s < pass.sequences; ++s) {
    const uint8_t* targets = pass.tokens + s * pass.stride + 1;
    T* logits = ws.logits + s * pass.length * config_.vocab;
    for (int64_t t = 0; t < pass.length; ++t) {
      sum += cross_entropy(config_.vocab, targets[t], grad_scale, logits + t * config_.vocab);
    }
  }
  return sum;
}

template class Gpt<float>;
template class Gpt<double>;

}  // namespace muonrt::train
