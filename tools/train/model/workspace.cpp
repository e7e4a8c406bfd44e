#include "train/model/workspace.hpp"

#include <algorithm>
#include <limits>
#include <new>

namespace muonrt::train {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

void Workspace::Free::operator()(float* block) const { ::operator delete(block, kAlignment); }

Workspace::Workspace(const Config& config, int64_t sequences)
    : config_(config), sequences_(sequences) {
  layers.resize(static_cast<size_t>(config.layers));
  const int64_t elements = place(nullptr);
  block_.reset(static_cast<float*>(
      ::operator new(static_cast<size_t>(elements) * sizeof(float), kAlignment)));
  std::fill_n(block_.get(), elements, 0.0f);
  place(block_.get());
  attention_max.resize(static_cast<size_t>(config.layers * config.heads));
  forget_attention_max();
}

void Workspace::forget_attention_max() {
  std::fill(attention_max.begin(), attention_max.end(), -std::numeric_limits<float>::infinity());
}

// If the base is null, only counts the elements.
int64_t Workspace::place(float* base) {
  const int64_t per_line = static_cast<int64_t>(kAlignment) / static_cast<int64_t>(sizeof(float));
  int64_t used = 0;
  auto take = [&](float*& out, int64_t count) {
    out = base ? base + used : nullptr;
    used += (count + per_line - 1) / per_line * per_line;
  };
  const int64_t rows = sequences_ * config_.context;
  const int64_t wide = rows * config_.d_model;
  const int64_t scores = config_.context * config_.context;
  for (Layer& layer : layers) {
    take(layer.x, wide);
    take(layer.inv1, rows);
    take(layer.normed1, wide);
    for (float** out : {&layer.q, &layer.k, &layer.v}) take(*out, wide);
    take(layer.prob, sequences_ * config_.heads * scores);
    take(layer.mixed, wide);
    take(layer.x_mid, wide);
    take(layer.inv2, rows);
    take(layer.normed2, wide);
    take(layer.up, rows * config_.d_mlp());
    take(layer.act, rows * config_.d_mlp());
  }
  take(x, wide);
  take(inv, rows);
  take(normed, wide);
  take(logits, rows * config_.vocab);
  for (float** out : {&dx, &dnormed, &dmixed, &dq, &dk, &dv}) take(*out, wide);
  take(dmlp, rows * config_.d_mlp());
  take(dprob, scores);
  return used;
}

}  // namespace muonrt::train
