#include <algorithm>
#include <cmath>

#include "train/gpt.hpp"
#include "train/layers.hpp"
#include "train/linear.hpp"

namespace muonrt::train {

// ws.logits holds the gradients of the logits; ws.dx carries the gradient of the residual stream
// from the last layer to the embeddings.
template <class T>
void Gpt<T>::backward(const Pass& pass, T* const* grads, Workspace<T>& ws) const {
  const int64_t rows = pass.rows();
  const int64_t d = config_.d_model;
  const int64_t norm = ParamIndex::norm(config_);
  const int64_t head = ParamIndex::head(config_);
  linear_backward_weight(rows, d, config_.vocab, ws.logits, ws.normed, grads[head]);
  linear_backward_input(rows, d, config_.vocab, ws.logits, pass.params[head], ws.dnormed);
  std::fill_n(ws.dx, rows * d, T{0});
  rms_norm_backward(rows, d, ws.x, pass.params[norm], ws.inv, ws.dnormed, ws.dx, grads[norm]);
  for (int64_t layer = config_.layers - 1; layer >= 0; --layer) {
    backward_mlp(pass, layer, grads, ws);
    backward_attention(pass, layer, grads, ws);
  }
  embed_backward(pass.tokens, pass.stride, pass.sequences, pass.length, d, ws.dx,
                 grads[ParamIndex::kWte], grads[ParamIndex::kWpe]);
}

template <class T>
void Gpt<T>::backward_mlp(const Pass& pass, int64_t layer, T* const* grads,
                          Workspace<T>& ws) const {
  const auto& a = ws.layers[static_cast<size_t>(layer)];
  const int64_t rows = pass.rows();
  const int64_t d = config_.d_model;
  const int64_t wide = config_.d_mlp();
  auto param = [&](ParamIndex::InLayer what) {
    return pass.params[ParamIndex::layer(layer, what)];
  };
  auto grad = [&](ParamIndex::InLayer what) { return grads[ParamIndex::layer(layer, what)]; };

  linear_backward_weight(rows, wide, d, ws.dx, a.act, grad(ParamIndex::kWDown));
  linear_backward_input(rows, wide, d, ws.dx, param(ParamIndex::kWDown), ws.dmlp);
  gelu_backward(rows * wide, a.up, ws.dmlp);
  linear_backward_weight(rows, d, wide, ws.dmlp, a.normed2, grad(ParamIndex::kWUp));
  linear_backward_input(rows, d, wide, ws.dmlp, param(ParamIndex::kWUp), ws.dnormed);
  rms_norm_backward(rows, d, a.x_mid, param(ParamIndex::kNorm2), a.inv2, ws.dnormed, ws.dx,
                    grad(ParamIndex::kNorm2));
}

template <class T>
void Gpt<T>::backward_attention(const Pass& pass, int64_t layer, T* const* grads,
                                Workspace<T>& ws) const {
  const auto& a = ws.layers[static_cast<size_t>(layer)];
  const int64_t rows = pass.rows();
  const int64_t d = config_.d_model;
  const int64_t head_dim = config_.head_dim();
  const int64_t length = pass.length;
  auto param = [&](ParamIndex::InLayer what) {
    return pass.params[ParamIndex::layer(layer, what)];
  };
  auto grad = [&](ParamIndex::InLayer what) { return grads[ParamIndex::layer(layer, what)]; };

  linear_backward_weight(rows, d, d, ws.dx, a.mixed, grad(ParamIndex::kWo));
  linear_backward_input(rows, d, d, ws.dx, param(ParamIndex::kWo), ws.dmixed);

  const T scale = T{1} / std::sqrt(static_cast<T>(head_dim));
  for (int64_t s = 0; s < pass.sequences; ++s) {
    for (int64_t h = 0; h < config_.heads; ++h) {
      const int64_t at = s * length * d + h * head_dim;
      const T* prob = a.prob + (s * config_.heads + h) * length * length;
      gemm(Trans::kYes, Trans::kNo, length, head_dim, length, prob, length, ws.dmixed + at, d, T{0},
           ws.dv + at, d);
      gemm(Trans::kNo, Trans::kYes, length, length, head_dim, ws.dmixed + at, d, a.v + at, d, T{0},
           ws.dprob, length);
      causal_softmax_backward(length, scale, prob, ws.dprob);
      gemm(Trans::kNo, Trans::kNo, length, head_dim, length, ws.dprob, length, a.k + at, d, T{0},
           ws.dq + at, d);
      gemm(Trans::kYes, Trans::kNo, length, head_dim, length, ws.dprob, length, a.q + at, d, T{0},
           ws.dk + at, d);
    }
  }
  linear_backward_weight(rows, d, d, ws.dq, a.normed1, grad(ParamIndex::kWq));
  linear_backward_weight(rows, d, d, ws.dk, a.normed1, grad(ParamIndex::kWk));
  linear_backward_weight(rows, d, d, ws.dv, a.normed1, grad(ParamIndex::kWv));
  linear_backward_input(rows, d, d, ws.dq, param(ParamIndex::kWq), ws.dnormed);
  linear_backward_input(rows, d, d, ws.dk, param(ParamIndex::kWk), ws.dnormed, Write::kAdd);
  linear_backward_input(rows, d, d, ws.dv, param(ParamIndex::kWv), ws.dnormed, Write::kAdd);
  rms_norm_backward(rows, d, a.x, param(ParamIndex::kNorm1), a.inv1, ws.dnormed, ws.dx,
                    grad(ParamIndex::kNorm1));
}

template void Gpt<float>::backward(const Pass&, float* const*, Workspace<float>&) const;
template void Gpt<double>::backward(const Pass&, double* const*, Workspace<double>&) const;

}  // namespace muonrt::train
