#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "train/config.hpp"
#include "train/products.hpp"

namespace muonrt::train {

/// Memory for one thread that runs the model: the activations of a pass over at most `sequences`
/// sequences, and their gradients. The constructor allocates it. In the comments below, `rows` is
/// sequences * context.
class Workspace {
 public:
  Workspace(const Config& config, int64_t sequences);

  int64_t sequences() const { return sequences_; }
  void forget_attention_max();

  /// The results of a layer's forward pass that its backward pass needs.
  struct Layer {
    float* x = nullptr;        // rows x d_model: input of the layer
    float* inv1 = nullptr;     // rows
    float* normed1 = nullptr;  // rows x d_model
    float* q = nullptr;  // rows x d_model; head h has columns [h * head_dim, (h + 1) * head_dim)
    float* k = nullptr;
    float* v = nullptr;
    float* prob = nullptr;     // sequences x heads x context x context
    float* mixed = nullptr;    // rows x d_model: prob v, before the product with wo
    float* x_mid = nullptr;    // rows x d_model: after attention
    float* inv2 = nullptr;     // rows
    float* normed2 = nullptr;  // rows x d_model
    float* up = nullptr;       // rows x d_mlp
    float* act = nullptr;      // rows x d_mlp: gelu(up)
  };

  Products products;
  std::vector<Layer> layers;
  /// layers x heads: for each head, the largest scaled softmax input over all queries and keys in
  /// the passes since `forget_attention_max`. Before the first pass, it is -infinity.
  std::vector<float> attention_max;
  float* x = nullptr;       // rows x d_model: output of the last layer
  float* inv = nullptr;     // rows
  float* normed = nullptr;  // rows x d_model
  float* logits = nullptr;  // rows x vocab; after the loss, the gradients of the logits

  float* dx = nullptr;       // rows x d_model: gradient of the residual stream
  float* dnormed = nullptr;  // rows x d_model
  float* dmixed = nullptr;   // rows x d_model
  float* dq = nullptr;       // rows x d_model
  float* dk = nullptr;
  float* dv = nullptr;
  float* dmlp = nullptr;   // rows x d_mlp
  float* dprob = nullptr;  // context x context

 private:
  struct Free {
    void operator()(float* block) const;
  };

  int64_t place(float* base);

  Config config_;
  int64_t sequences_;
  std::unique_ptr<float[], Free> block_;
};

}  // namespace muonrt::train
