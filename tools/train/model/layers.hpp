#pragma once

#include <cstdint>

namespace muonrt::train {

/// Sequences of `length` tokens, one every `stride` bytes.
struct Tokens {
  const uint8_t* data;
  int64_t stride, sequences, length;

  const uint8_t* at(int64_t sequence) const { return data + sequence * stride; }
  int64_t rows() const { return sequences * length; }
};

/// The layers of the model on `rows` tokens, forward and backward.
/// Gradients of parameters are overwritten.
struct Layers {
  /// out[r, :] = wte[token r, :] + wpe[r mod length, :].
  static void embed(const Tokens& in, int64_t d, const float* wte, const float* wpe, float* out);
  /// dwpe: the first `length` rows.
  static void embed_backward(const Tokens& in, int64_t d, int64_t vocab, const float* dout,
                             float* dwte, float* dwpe);

  /// RMSNorm: y = x * gain / sqrt(mean(x^2) + 1e-6); inv[r] keeps the reciprocal root.
  /// Source: Zhang and Sennrich 2019, Root Mean Square Layer Normalization, equation 4.
  static void rms_norm(int64_t rows, int64_t d, const float* x, const float* gain, float* y,
                       float* inv);
  /// dx is added to.
  static void rms_norm_backward(int64_t rows, int64_t d, const float* x, const float* gain,
                                const float* inv, const float* dy, float* dx, float* dgain);

  /// GELU in its tanh form: y = x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)).
  /// Source: Hendrycks and Gimpel 2016, Gaussian Error Linear Units, section 2.
  static void gelu(int64_t n, const float* x, float* y);
  /// dy becomes the gradient of x.
  static void gelu_backward(int64_t n, const float* x, float* dy);

  /// Scores to probabilities, in place: row i of the length x length block is
  /// softmax(scale * s[i, 0..i]), zero to the right of it. length >= 1, scale > 0.
  /// @return  the largest of scale * s[i, 0..i] over all rows.
  static float causal_softmax(int64_t length, float scale, float* scores);
  /// dprob becomes the gradient of the unscaled scores.
  static void causal_softmax_backward(int64_t length, float scale, const float* prob, float* dprob);

  /// -log softmax(logits)[target] of one token. The logits become grad_scale times their gradient.
  static double cross_entropy(int64_t vocab, int64_t target, float grad_scale, float* logits);
};

}  // namespace muonrt::train
