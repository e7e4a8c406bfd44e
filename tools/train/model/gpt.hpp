#pragma once

#include <cstdint>
#include <vector>

#include "train/config.hpp"
#include "train/model/layers.hpp"
#include "train/model/workspace.hpp"

namespace muonrt::train {

/// A byte-level GPT with learned positions, RMSNorm before each block, causal attention, a GELU
/// MLP, no biases and a separate head. This object has no parameters and no state. The caller
/// passes full tensors, with one pointer for each entry of `params()`, in the same order. Threads:
/// any number of calls at the same time, each with its own workspace.
class Gpt {
 public:
  explicit Gpt(const Config& config) : config_(config), specs_(param_specs(config)) {}

  const Config& config() const { return config_; }
  const std::vector<ParamSpec>& params() const { return specs_; }

  /// Returns the sum (not the mean) of -log p(next token) over all tokens, in nats, and writes its
  /// gradient times grad_scale to `grads`. If grad_scale is 1 / (number of tokens in the global
  /// batch), the gradients of the parts of a batch add up to the gradient of the batch's mean loss.
  /// @param params  full tensors, row-major; read only.
  /// @param tokens  sequences x (context + 1) bytes below vocab, contiguous; position t predicts
  ///     position t + 1.
  /// @param grads   receives the gradients, in tensors with the shapes of `params`.
  /// Errors: std::runtime_error if `ws` was made for fewer sequences.
  double forward_backward(const float* const* params, const uint8_t* tokens, int64_t sequences,
                          float grad_scale, float* const* grads, Workspace& ws) const;

  /// Returns the same sum without computing gradients.
  double evaluate(const float* const* params, const uint8_t* tokens, int64_t sequences,
                  Workspace& ws) const;

 private:
  struct Pass {
    const float* const* params;
    Tokens tokens;
    int64_t rows() const { return tokens.rows(); }
  };
  Pass pass_of(const float* const* params, const uint8_t* tokens, int64_t sequences,
               const Workspace& ws) const;

  void forward(const Pass& pass, Workspace& ws) const;
  void forward_attention(const Pass& pass, int64_t layer, Workspace& ws) const;
  void forward_mlp(const Pass& pass, int64_t layer, float* out, Workspace& ws) const;
  double loss(const Pass& pass, float grad_scale, Workspace& ws) const;

  void backward(const Pass& pass, float* const* grads, Workspace& ws) const;
  void backward_mlp(const Pass& pass, int64_t layer, float* const* grads, Workspace& ws) const;
  void backward_attention(const Pass& pass, int64_t layer, float* const* grads,
                          Workspace& ws) const;

  Config config_;
  std::vector<ParamSpec> specs_;
};

}  // namespace muonrt::train
