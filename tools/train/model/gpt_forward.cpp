#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "train/model/gpt.hpp"

namespace muonrt::train {

Gpt::Pass Gpt::pass_of(const float* const* params, const uint8_t* tokens, int64_t sequences,
                       const Workspace& ws) const {
  if (sequences > ws.sequences()) {
    throw std::runtime_error("model: " + std::to_string(sequences) + " sequences for a workspace " +
                             "of " + std::to_string(ws.sequences()));
  }
  return {params, {tokens, config_.context + 1, sequences, config_.context}};
}

double Gpt::forward_backward(const float* const* params, const uint8_t* tokens, int64_t sequences,
                             float grad_scale, float* const* grads, Workspace& ws) const {
  const Pass pass = pass_of(params, tokens, sequences, ws);
  forward(pass, ws);
  const double sum = loss(pass, grad_scale, ws);
  backward(pass, grads, ws);
  return sum;
}

double Gpt::evaluate(const float* const* params, const uint8_t* tokens, int64_t sequences,
                     Workspace& ws) const {
  const Pass pass = pass_of(params, tokens, sequences, ws);
  forward(pass, ws);
  return loss(pass, 0.0f, ws);
}

// Computes the model up to the last norm. The caller computes the logits.
void Gpt::forward(const Pass& pass, Workspace& ws) const {
  const int64_t d = config_.d_model;
  Layers::embed(pass.tokens, d, pass.params[ParamIndex::kWte], pass.params[ParamIndex::kWpe],
                ws.layers.front().x);
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    const bool last = layer + 1 == config_.layers;
    forward_attention(pass, layer, ws);
    forward_mlp(pass, layer, last ? ws.x : ws.layers[static_cast<size_t>(layer + 1)].x, ws);
  }
  Layers::rms_norm(pass.rows(), d, ws.x, pass.params[ParamIndex::norm(config_)], ws.normed, ws.inv);
}

// Computes x_mid = x + wo attention(norm1(x)).
void Gpt::forward_attention(const Pass& pass, int64_t layer, Workspace& ws) const {
  auto& a = ws.layers[static_cast<size_t>(layer)];
  auto& products = ws.products;
  const int64_t rows = pass.rows(), d = config_.d_model, width = config_.head_dim();
  const int64_t length = pass.tokens.length;
  const float* const* const params = pass.params + ParamIndex::layer(layer, ParamIndex::kNorm1);

  Layers::rms_norm(rows, d, a.x, params[ParamIndex::kNorm1], a.normed1, a.inv1);
  products.linear(rows, d, d, a.normed1, params[ParamIndex::kWq], a.q);
  products.linear(rows, d, d, a.normed1, params[ParamIndex::kWk], a.k);
  products.linear(rows, d, d, a.normed1, params[ParamIndex::kWv], a.v);

  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  for (int64_t s = 0; s < pass.tokens.sequences; ++s) {
    for (int64_t h = 0; h < config_.heads; ++h) {
      const int64_t at = s * length * d + h * width;
      float* prob = a.prob + (s * config_.heads + h) * length * length;
      products.multiply({a.q + at, length, width, d}, {a.k + at, length, width, d, true}, prob,
                        length);
      float& largest = ws.attention_max[static_cast<size_t>(layer * config_.heads + h)];
      largest = std::max(largest, Layers::causal_softmax(length, scale, prob));
      products.multiply({prob, length, length, length}, {a.v + at, length, width, d}, a.mixed + at,
                        d);
    }
  }
  products.linear(rows, d, d, a.mixed, params[ParamIndex::kWo], a.x_mid, a.x);
}

// Computes out = x_mid + w_down gelu(w_up norm2(x_mid)).
void Gpt::forward_mlp(const Pass& pass, int64_t layer, float* out, Workspace& ws) const {
  auto& a = ws.layers[static_cast<size_t>(layer)];
  const int64_t rows = pass.rows(), d = config_.d_model, wide = config_.d_mlp();
  const float* const* const params = pass.params + ParamIndex::layer(layer, ParamIndex::kNorm1);
  Layers::rms_norm(rows, d, a.x_mid, params[ParamIndex::kNorm2], a.normed2, a.inv2);
  ws.products.linear(rows, d, wide, a.normed2, params[ParamIndex::kWUp], a.up);
  Layers::gelu(rows * wide, a.up, a.act);
  ws.products.linear(rows, wide, d, a.act, params[ParamIndex::kWDown], out, a.x_mid);
}

// Returns the sum of the token losses. Replaces the logits with their gradients.
double Gpt::loss(const Pass& pass, float grad_scale, Workspace& ws) const {
  ws.products.linear(pass.rows(), config_.d_model, config_.vocab, ws.normed,
                     pass.params[ParamIndex::head(config_)], ws.logits);
  double sum = 0.0;
  float* logits = ws.logits;
  for (int64_t s = 0; s < pass.tokens.sequences; ++s) {
    const uint8_t* targets = pass.tokens.at(s) + 1;
    for (int64_t t = 0; t < pass.tokens.length; ++t, logits += config_.vocab) {
      sum += Layers::cross_entropy(config_.vocab, targets[t], grad_scale, logits);
    }
  }
  return sum;
}

}  // namespace muonrt::train
