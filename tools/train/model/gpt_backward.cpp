#include <algorithm>
#include <cmath>

#include "train/model/gpt.hpp"

namespace muonrt::train {

// ws.logits holds the gradients of the logits. ws.dx holds the gradient of the residual stream,
// from the last layer back to the embeddings.
void Gpt::backward(const Pass& pass, float* const* grads, Workspace& ws) const {
  const int64_t rows = pass.rows();
  const int64_t d = config_.d_model;
  const int64_t norm = ParamIndex::norm(config_);
  const int64_t head = ParamIndex::head(config_);
  ws.products.weight_gradient(rows, d, config_.vocab, ws.logits, ws.normed, grads[head]);
  ws.products.input_gradient(rows, d, config_.vocab, ws.logits, pass.params[head], ws.dnormed);
  std::fill_n(ws.dx, rows * d, 0.0f);
  Layers::rms_norm_backward(rows, d, ws.x, pass.params[norm], ws.inv, ws.dnormed, ws.dx,
                            grads[norm]);
  for (int64_t layer = config_.layers - 1; layer >= 0; --layer) {
    backward_mlp(pass, layer, grads, ws);
    backward_attention(pass, layer, grads, ws);
  }
  Layers::embed_backward(pass.tokens, d, config_.vocab, ws.dx, grads[ParamIndex::kWte],
                         grads[ParamIndex::kWpe]);
}

void Gpt::backward_mlp(const Pass& pass, int64_t layer, float* const* grads, Workspace& ws) const {
  const auto& a = ws.layers[static_cast<size_t>(layer)];
  const int64_t rows = pass.rows(), d = config_.d_model, wide = config_.d_mlp();
  const int64_t first = ParamIndex::layer(layer, ParamIndex::kNorm1);
  const float* const* const params = pass.params + first;
  float* const* const out = grads + first;

  ws.products.weight_gradient(rows, wide, d, ws.dx, a.act, out[ParamIndex::kWDown]);
  ws.products.input_gradient(rows, wide, d, ws.dx, params[ParamIndex::kWDown], ws.dmlp);
  Layers::gelu_backward(rows * wide, a.up, ws.dmlp);
  ws.products.weight_gradient(rows, d, wide, ws.dmlp, a.normed2, out[ParamIndex::kWUp]);
  ws.products.input_gradient(rows, d, wide, ws.dmlp, params[ParamIndex::kWUp], ws.dnormed);
  Layers::rms_norm_backward(rows, d, a.x_mid, params[ParamIndex::kNorm2], a.inv2, ws.dnormed, ws.dx,
                            out[ParamIndex::kNorm2]);
}

void Gpt::backward_attention(const Pass& pass, int64_t layer, float* const* grads,
                             Workspace& ws) const {
  const auto& a = ws.layers[static_cast<size_t>(layer)];
  auto& products = ws.products;
  const int64_t rows = pass.rows(), d = config_.d_model, width = config_.head_dim();
  const int64_t length = pass.tokens.length;
  const int64_t first = ParamIndex::layer(layer, ParamIndex::kNorm1);
  const float* const* const params = pass.params + first;
  float* const* const out = grads + first;

  products.weight_gradient(rows, d, d, ws.dx, a.mixed, out[ParamIndex::kWo]);
  products.input_gradient(rows, d, d, ws.dx, params[ParamIndex::kWo], ws.dmixed);

  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  for (int64_t s = 0; s < pass.tokens.sequences; ++s) {
    for (int64_t h = 0; h < config_.heads; ++h) {
      const int64_t at = s * length * d + h * width;
      const float* prob = a.prob + (s * config_.heads + h) * length * length;
      const Factor dmixed{ws.dmixed + at, length, width, d};
      products.multiply({prob, length, length, length, true}, dmixed, ws.dv + at, d);
      products.multiply(dmixed, {a.v + at, length, width, d, true}, ws.dprob, length);
      Layers::causal_softmax_backward(length, scale, prob, ws.dprob);
      products.multiply({ws.dprob, length, length, length}, {a.k + at, length, width, d},
                        ws.dq + at, d);
      products.multiply({ws.dprob, length, length, length, true}, {a.q + at, length, width, d},
                        ws.dk + at, d);
    }
  }
  products.weight_gradient(rows, d, d, ws.dq, a.normed1, out[ParamIndex::kWq]);
  products.weight_gradient(rows, d, d, ws.dk, a.normed1, out[ParamIndex::kWk]);
  products.weight_gradient(rows, d, d, ws.dv, a.normed1, out[ParamIndex::kWv]);
  // Sums three terms, using two buffers alternately.
  products.input_gradient(rows, d, d, ws.dq, params[ParamIndex::kWq], ws.dnormed);
  products.input_gradient(rows, d, d, ws.dk, params[ParamIndex::kWk], ws.dmixed, ws.dnormed);
  products.input_gradient(rows, d, d, ws.dv, params[ParamIndex::kWv], ws.dnormed, ws.dmixed);
  Layers::rms_norm_backward(rows, d, a.x, params[ParamIndex::kNorm1], a.inv1, ws.dnormed, ws.dx,
                            out[ParamIndex::kNorm1]);
}

}  // namespace muonrt::train
