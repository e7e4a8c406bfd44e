#pragma once

#include <cstdint>

namespace muonrt::train {

// The layers of the model on `rows` tokens, forward and backward, for float and double.
// Gradients of parameters are added to what is there.

/// out[r, :] = wte[tokens[r], :] + wpe[r mod length, :].
/// @param tokens  sequences of `length` tokens, one every `stride` bytes.
template <class T>
void embed(const uint8_t* tokens, int64_t stride, int64_t sequences, int64_t length, int64_t d,
           const T* wte, const T* wpe, T* out);

template <class T>
void embed_backward(const uint8_t* tokens, int64_t stride, int64_t sequences, int64_t length,
                    int64_t d, const T* dout, T* dwte, T* dwpe);

/// RMSNorm: y = x * gain / sqrt(mean(x^2) + 1e-6); inv[r] keeps the reciprocal root.
/// Source: Zhang and Sennrich 2019, Root Mean Square Layer Normalization, equation 4.
void rms_norm(int64_t rows, int64_t d, const float* x, const float* gain, float* y, float* inv);
void rms_norm(int64_t rows, int64_t d, const double* x, const double* gain, double* y, double* inv);

/// dx and dgain are added to.
void rms_norm_backward(int64_t rows, int64_t d, const float* x, const float* gain, const float* inv,
                       const float* dy, float* dx, float* dgain);
void rms_norm_backward(int64_t rows, int64_t d, const double* x, const double* gain,
                       const double* inv, const double* dy, double* dx, double* dgain);

/// GELU in its tanh form: y = x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)).
/// Source: Hendrycks and Gimpel 2016, Gaussian Error Linear Units, section 2.
void gelu(int64_t n, const float* x, float* y);
void gelu(int64_t n, const double* x, double* y);

/// dy becomes the gradient of x.
void gelu_backward(int64_t n, const float* x, float* dy);
void gelu_backward(int64_t n, const double* x, double* dy);

/// Scores to probabilities, in place: row i of the length x length block is
/// softmax(scale * s[i, 0..i]), zero to the right of it. length >= 1, scale > 0.
/// @return  the largest of scale * s[i, 0..i] over all rows.
float causal_softmax(int64_t length, float scale, float* scores);
double causal_softmax(int64_t length, double scale, double* scores);

/// dprob becomes the gradient of the unscaled scores.
void causal_softmax_backward(int64_t length, float scale, const float* prob, float* dprob);
void causal_softmax_backward(int64_t length, double scale, const double* prob, double* dprob);

/// -log softmax(logits)[target] of one token. The logits become grad_scale times their gradient.
double cross_entropy(int64_t vocab, int64_t target, float grad_scale, float* logits);
double cross_entropy(int64_t vocab, int64_t target, double grad_scale, double* logits);

}  // namespace muonrt::train
