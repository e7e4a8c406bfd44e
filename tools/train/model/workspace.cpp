#include "train/model/workspace.hpp"

#include <algorithm>
#include <limits>
#include <new>

namespace muonrt::train {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

template <class T>
void Workspace<T>::Free::operator()(T* block) const {
  ::operator delete(block, kAlignment);
}

template <class T>
Workspace<T>::Workspace(const Config& config, int64_t sequences)
    : config_(config), sequences_(sequences) {
  layers.resize(static_cast<size_t>(config.layers));
  const int64_t elements = place(nullptr);
  block_.reset(
      static_cast<T*>(::operator new(static_cast<size_t>(elements) * sizeof(T), kAlignment)));
  std::fill_n(block_.get(), elements, T{0});
  place(block_.get());
  attention_max.resize(static_cast<size_t>(config.layers * config.heads));
  forget_attention_max();
}

template <class T>
void Workspace<T>::forget_attention_max() {
  std::fill(attention_max.begin(), attention_max.end(), -std::numeric_limits<T>::infinity());
}

// With a null base it only counts.
template <class T>
int64_t Workspace<T>::place(T* base) {
  const int64_t per_line = static_cast<int64_t>(kAlignment) / static_cast<int64_t>(sizeof(T));
  int64_t used = 0;
  auto take = [&](T*& out, int64_t count) {
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
    for (T** out : {&layer.q, &layer.k, &layer.v}) take(*out, wide);
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
  for (T** out : {&dx, &dnormed, &dmixed, &dq, &dk, &dv}) take(*out, wide);
  take(dmlp, rows * config_.d_mlp());
  take(dprob, scores);
  return used;
}

template class Workspace<float>;
template class Workspace<double>;

}  // namespace muonrt::train
