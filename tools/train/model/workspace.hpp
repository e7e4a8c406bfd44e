#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "train/config.hpp"
#include "train/products.hpp"

namespace muonrt::train {

/// Memory of one thread that runs the model: activations of a pass over at most `sequences`
/// sequences and their gradients, allocated once. `rows` is sequences * context below.
template <class T>
class Workspace {
 public:
  Workspace(const Config& config, int64_t sequences);

  int64_t sequences() const { return sequences_; }
  void forget_attention_max();

  /// What the forward pass of a layer leaves for the backward pass.
  struct Layer {
    T* x = nullptr;        // rows x d_model: what enters the layer
    T* inv1 = nullptr;     // rows
    T* normed1 = nullptr;  // rows x d_model
    T* q = nullptr;        // rows x d_model, head h in columns [h * head_dim, (h + 1) * head_dim)
    T* k = nullptr;
    T* v = nullptr;
    T* prob = nullptr;     // sequences x heads x context x context
    T* mixed = nullptr;    // rows x d_model: prob v, before wo
    T* x_mid = nullptr;    // rows x d_model: after attention
    T* inv2 = nullptr;     // rows
    T* normed2 = nullptr;  // rows x d_model
    T* up = nullptr;       // rows x d_mlp
    T* act = nullptr;      // rows x d_mlp: gelu(up)
  };

  Products<T> products;
  std::vector<Layer> layers;
  /// layers x heads: the largest input of a head's softmax (scale included, over all queries and
  /// the keys they see) in the passes since `forget_attention_max`; -infinity where there was none.
  std::vector<T> attention_max;
  T* x = nullptr;       // rows x d_model: what leaves the last layer
  T* inv = nullptr;     // rows
  T* normed = nullptr;  // rows x d_model
  T* logits = nullptr;  // rows x vocab; their gradients after the loss

  T* dx = nullptr;       // rows x d_model: gradient of the residual stream
  T* dnormed = nullptr;  // rows x d_model
  T* dmixed = nullptr;   // rows x d_model
  T* dq = nullptr;       // rows x d_model
  T* dk = nullptr;
  T* dv = nullptr;
  T* dmlp = nullptr;   // rows x d_mlp
  T* dprob = nullptr;  // context x context

 private:
  struct Free {
    void operator()(T* block) const;
  };

  int64_t place(T* base);

  Config config_;
  int64_t sequences_;
  std::unique_ptr<T[], Free> block_;
};

}  // namespace muonrt::train
