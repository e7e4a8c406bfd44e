#pragma once

#include <cstdint>

namespace muonrt::train {

/// Sequences of `length` tokens. A new sequence begins every `stride` bytes.
struct Tokens {
  const uint8_t* data;
  int64_t stride, sequences, length;

  const uint8_t* at(int64_t sequence) const { return data + sequence * stride; }
  int64_t rows() const { return sequences * length; }
};

/// The forward and backward functions of the model's layers, for `rows` tokens. Backward functions
/// overwrite the gradients of parameters.
struct Layers {
  /// Computes out[r, :] = wte[token r, :] + wpe[r mod length, :].
  static void embed(const Tokens& in, int64_t d, const float* wte, const float* wpe, float* out);
  /// Computes dwte, and the first `length` rows of dwpe.
  static void embed_backward(const Tokens& in, int64_t d, int64_t vocab, const float* dout,
                             float* dwte, float* dwpe);

  /// Computes RMSNorm, y = x * gain / sqrt(mean(x^2) + 1e-6), and stores the reciprocal root in
  /// inv[r]. Source: Zhang and Sennrich 2019, Root Mean Square Layer Normalization, equation 4.
  static void rms_norm(int64_t rows, int64_t d, const float* x, const float* gain, float* y,
                       float* inv);
  /// Adds the gradient with respect to x to dx.
  static void rms_norm_backward(int64_t rows, int64_t d, const float* x, const float* gain,
                                const float* inv, const float* dy, float* dx, float* dgain);

  /// Computes GELU in its tanh form: y = x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)). Source:
  /// Hendrycks and Gimpel 2016, Gaussian Error Linear Units, section 2.
  static void gelu(int64_t n, const float* x, float* y);
  /// Replaces dy with the gradient with respect to x.
  static void gelu_backward(int64_t n, const float* x, float* dy);

  /// Converts scores to probabilities in place: row i of the length x length block becomes
  /// softmax(scale * s[i, 0..i]), followed by zeros. `length` must be at least 1, and `scale` must
  /// be above 0.
  /// @return  the largest of scale * s[i, 0..i] over all rows.
  static float causal_softmax(int64_t length, float scale, float* scores);
  /// Replaces dprob with the gradient with respect to the scores before they are scaled.
  static void causal_softmax_backward(int64_t length, float scale, const float* prob, float* dprob);

  /// Returns -log softmax(logits)[target] of one token. Replaces the logits with their gradient
  /// times grad_scale.
  static double cross_entropy(int64_t vocab, int64_t target, float grad_scale, float* logits);
};

}  // namespace muonrt::train
