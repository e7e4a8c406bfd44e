#include "train/layers.hpp"

#include <algorithm>
#include <cmath>

#include "train/vector_math.hpp"

namespace muonrt::train {
namespace {

constexpr double kRmsEps = 1e-6;
constexpr double kGeluScale = 1.5957691216057308;  // 2 sqrt(2 / pi)
constexpr double kGeluCube = 0.044715;

template <class T>
MUONRT_TRAIN_INLINE void rms_norm_body(int64_t rows, int64_t d, const T* x, const T* gain, T* y,
                                       T* inv) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* __restrict in = x + r * d;
    T* __restrict out = y + r * d;
    const T squares = sum_lanes<T>(d, [&](int64_t i) { return in[i] * in[i]; });
    const T root = T{1} / std::sqrt(squares / static_cast<T>(d) + static_cast<T>(kRmsEps));
    for (int64_t i = 0; i < d; ++i) out[i] = in[i] * root * gain[i];
    inv[r] = root;
  }
}

template <class T>
MUONRT_TRAIN_INLINE void rms_norm_backward_body(int64_t rows, int64_t d, const T* x, const T* gain,
                                                const T* inv, const T* dy, T* dx, T* dgain) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* __restrict in = x + r * d;
    const T* __restrict dout = dy + r * d;
    T* __restrict din = dx + r * d;
    const T root = inv[r];
    const T dot = sum_lanes<T>(d, [&](int64_t i) { return gain[i] * dout[i] * in[i]; });
    const T along = dot * root * root * root / static_cast<T>(d);
    for (int64_t i = 0; i < d; ++i) {
      dgain[i] += dout[i] * in[i] * root;
      din[i] += gain[i] * dout[i] * root - in[i] * along;
    }
  }
}

template <class T>
MUONRT_TRAIN_INLINE T gelu_gate(T x) {
  const T z = static_cast<T>(kGeluScale) * (x + static_cast<T>(kGeluCube) * x * x * x);
  return T{1} / (T{1} + fast_exp(-z));
}

template <class T>
MUONRT_TRAIN_INLINE void gelu_body(int64_t n, const T* x, T* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * gelu_gate(x[i]);
}

template <class T>
MUONRT_TRAIN_INLINE void gelu_backward_body(int64_t n, const T* x, T* dy) {
  for (int64_t i = 0; i < n; ++i) {
    const T gate = gelu_gate(x[i]);
    const T slope =
        static_cast<T>(kGeluScale) * (T{1} + static_cast<T>(3 * kGeluCube) * x[i] * x[i]);
    dy[i] *= gate + x[i] * gate * (T{1} - gate) * slope;
  }
}

// Rows are worked on up to a whole number of lanes; what lies right of the diagonal is then zero.
inline int64_t padded(int64_t used, int64_t length) {
  return std::min(length, (used + kSumLanes - 1) / kSumLanes * kSumLanes);
}

template <class T>
MUONRT_TRAIN_INLINE T causal_softmax_body(int64_t length, T scale, T* scores) {
  T most = scores[0];
  for (int64_t i = 0; i < length; ++i) {
    T* row = scores + i * length;
    const int64_t used = i + 1;
    const int64_t width = padded(used, length);
    std::fill(row + used, row + width, row[0]);
    const T largest = max_lanes(row, width);
    most = largest > most ? largest : most;
    for (int64_t j = 0; j < width; ++j) row[j] = fast_exp((row[j] - largest) * scale);
    std::fill(row + used, row + length, T{0});
    const T inverse = T{1} / sum_lanes<T>(width, [&](int64_t j) { return row[j]; });
    for (int64_t j = 0; j < width; ++j) row[j] *= inverse;
  }
  return scale * most;
}

template <class T>
MUONRT_TRAIN_INLINE void causal_softmax_backward_body(int64_t length, T scale, const T* prob,
                                                      T* dprob) {
  for (int64_t i = 0; i < length; ++i) {
    const T* p = prob + i * length;
    T* dp = dprob + i * length;
    const int64_t used = i + 1;
    const int64_t width = padded(used, length);
    std::fill(dp + used, dp + length, T{0});
    const T dot = sum_lanes<T>(width, [&](int64_t j) { return p[j] * dp[j]; });
    for (int64_t j = 0; j < width; ++j) dp[j] = p[j] * (dp[j] - dot) * scale;
  }
}

template <class T>
MUONRT_TRAIN_INLINE double cross_entropy_body(int64_t vocab, int64_t target, T grad_scale,
                                              T* logits) {
  const T largest = max_lanes(logits, vocab);
  const double to_target = static_cast<double>(largest) - static_cast<double>(logits[target]);
  for (int64_t j = 0; j < vocab; ++j) logits[j] = fast_exp(logits[j] - largest);
  const T sum = sum_lanes<T>(vocab, [&](int64_t j) { return logits[j]; });
  const T factor = grad_scale / sum;
  for (int64_t j = 0; j < vocab; ++j) logits[j] *= factor;
  logits[target] -= grad_scale;
  return std::log(static_cast<double>(sum)) + to_target;
}

}  // namespace

template <class T>
void embed(const uint8_t* tokens, int64_t stride, int64_t sequences, int64_t length, int64_t d,
           const T* wte, const T* wpe, T* out) {
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t t = 0; t < length; ++t, out += d) {
      const T* token = wte + tokens[s * stride + t] * d;
      const T* position = wpe + t * d;
      for (int64_t i = 0; i < d; ++i) out[i] = token[i] + position[i];
    }
  }
}

template <class T>
void embed_backward(const uint8_t* tokens, int64_t stride, int64_t sequences, int64_t length,
                    int64_t d, const T* dout, T* dwte, T* dwpe) {
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t t = 0; t < length; ++t, dout += d) {
      T* token = dwte + tokens[s * stride + t] * d;
      T* position = dwpe + t * d;
      for (int64_t i = 0; i < d; ++i) {
        token[i] += dout[i];
        position[i] += dout[i];
      }
    }
  }
}

template void embed<float>(const uint8_t*, int64_t, int64_t, int64_t, int64_t, const float*,
                           const float*, float*);
template void embed<double>(const uint8_t*, int64_t, int64_t, int64_t, int64_t, const double*,
                            const double*, double*);
template void embed_backward<float>(const uint8_t*, int64_t, int64_t, int64_t, int64_t,
                                    const float*, float*, float*);
template void embed_backward<double>(const uint8_t*, int64_t, int64_t, int64_t, int64_t,
                                     const double*, double*, double*);

// Overloads, not a template: the choice by instruction set works on plain functions only.
#define MUONRT_TRAIN_LAYERS(T)                                                                   \
  MUONRT_TRAIN_CLONES void rms_norm(int64_t rows, int64_t d, const T* x, const T* gain, T* y,    \
                                    T* inv) {                                                    \
    rms_norm_body(rows, d, x, gain, y, inv);                                                     \
  }                                                                                              \
  MUONRT_TRAIN_CLONES void rms_norm_backward(int64_t rows, int64_t d, const T* x, const T* gain, \
                                             const T* inv, const T* dy, T* dx, T* dgain) {       \
    rms_norm_backward_body(rows, d, x, gain, inv, dy, dx, dgain);                                \
  }                                                                                              \
  MUONRT_TRAIN_CLONES void gelu(int64_t n, const T* x, T* y) { gelu_body(n, x, y); }             \
  MUONRT_TRAIN_CLONES void gelu_backward(int64_t n, const T* x, T* dy) {                         \
    gelu_backward_body(n, x, dy);                                                                \
  }                                                                                              \
  MUONRT_TRAIN_CLONES T causal_softmax(int64_t length, T scale, T* scores) {                     \
    return causal_softmax_body(length, scale, scores);                                           \
  }                                                                                              \
  MUONRT_TRAIN_CLONES void causal_softmax_backward(int64_t length, T scale, const T* prob,       \
                                                   T* dprob) {                                   \
    causal_softmax_backward_body(length, scale, prob, dprob);                                    \
  }                                                                                              \
  MUONRT_TRAIN_CLONES double cross_entropy(int64_t vocab, int64_t target, T grad_scale,          \
                                           T* logits) {                                          \
    return cross_entropy_body(vocab, target, grad_scale, logits);                                \
  }

MUONRT_TRAIN_LAYERS(float)
MUONRT_TRAIN_LAYERS(double)

}  // namespace muonrt::train
