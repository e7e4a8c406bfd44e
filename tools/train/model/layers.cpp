#include "train/model/layers.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "host/isa.hpp"

namespace muonrt::train {
namespace {

constexpr double kRmsEps = 1e-6;
constexpr double kGeluScale = 1.5957691216057308;  // 2 sqrt(2 / pi)
constexpr double kGeluCube = 0.044715;

/// Lanes of every sum over a row: a fixed number, so that its order does not depend on the
/// instruction set.
constexpr int64_t kLanes = 16;

MUONRT_ALWAYS_INLINE double exponential(double x) { return std::exp(x); }

/// The library's exponential is not vectorized, and the model takes one for every fifth product of
/// a weight: without branch and table, relative error below 3e-7 on [-87, 88], clamped outside.
MUONRT_ALWAYS_INLINE float exponential(float x) {
  constexpr float kLn2High = 0.693359375f;  // few bits, so that n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * 1.44269504f + kShift;
  const float n = shifted - kShift;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040.0f;  // Taylor series; |r| <= ln(2) / 2
  for (const float term :
       {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f}) {
    p = p * r + term;
  }
  // The low bits of `shifted` hold n, which belongs into the exponent.
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) +
                              (std::bit_cast<uint32_t>(shifted) << 23));
}

/// Sum of term(i) for i in [0, n).
template <class T, class Term>
MUONRT_ALWAYS_INLINE T sum_of(int64_t n, Term term) {
  T lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] += term(i + j);
  }
  for (int64_t j = 0; i < n; ++i, ++j) lanes[j] += term(i);
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

/// Largest of x[0..n); n >= 1. A NaN may be passed over.
template <class T>
MUONRT_ALWAYS_INLINE T largest_of(const T* x, int64_t n) {
  T lanes[kLanes];
  std::fill(lanes, lanes + kLanes, x[0]);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
  }
  for (int64_t j = 0; i < n; ++i, ++j) lanes[j] = x[i] > lanes[j] ? x[i] : lanes[j];
  return *std::max_element(lanes, lanes + kLanes);
}

struct RmsNorm {
  template <class T>
  static MUONRT_ALWAYS_INLINE void run(int64_t rows, int64_t d, const T* x, const T* gain, T* y,
                                       T* inv) {
    for (int64_t r = 0; r < rows; ++r) {
      const T* __restrict in = x + r * d;
      T* __restrict out = y + r * d;
      const T squares = sum_of<T>(d, [&](int64_t i) { return in[i] * in[i]; });
      const T root = T{1} / std::sqrt(squares / static_cast<T>(d) + static_cast<T>(kRmsEps));
      for (int64_t i = 0; i < d; ++i) out[i] = in[i] * root * gain[i];
      inv[r] = root;
    }
  }
};

struct RmsNormBackward {
  template <class T>
  static MUONRT_ALWAYS_INLINE void run(int64_t rows, int64_t d, const T* x, const T* gain,
                                       const T* inv, const T* dy, T* dx, T* __restrict dgain) {
    std::fill(dgain, dgain + d, T{0});
    for (int64_t r = 0; r < rows; ++r) {
      const T* __restrict in = x + r * d;
      const T* __restrict dout = dy + r * d;
      T* __restrict din = dx + r * d;
      const T root = inv[r];
      const T dot = sum_of<T>(d, [&](int64_t i) { return gain[i] * dout[i] * in[i]; });
      const T along = dot * root * root * root / static_cast<T>(d);
      for (int64_t i = 0; i < d; ++i) {
        dgain[i] += dout[i] * in[i] * root;
        din[i] += gain[i] * dout[i] * root - in[i] * along;
      }
    }
  }
};

template <class T>
MUONRT_ALWAYS_INLINE T gelu_gate(T x) {
  const T z = static_cast<T>(kGeluScale) * (x + static_cast<T>(kGeluCube) * x * x * x);
  return T{1} / (T{1} + exponential(-z));
}

struct Gelu {
  template <class T>
  static MUONRT_ALWAYS_INLINE void run(int64_t n, const T* x, T* y) {
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * gelu_gate(x[i]);
  }
};

struct GeluBackward {
  template <class T>
  static MUONRT_ALWAYS_INLINE void run(int64_t n, const T* x, T* dy) {
    for (int64_t i = 0; i < n; ++i) {
      const T gate = gelu_gate(x[i]);
      const T slope =
          static_cast<T>(kGeluScale) * (T{1} + static_cast<T>(3 * kGeluCube) * x[i] * x[i]);
      dy[i] *= gate + x[i] * gate * (T{1} - gate) * slope;
    }
  }
};

// Rows are worked on up to a whole number of lanes; what lies right of the diagonal is then zero.
inline int64_t padded(int64_t used, int64_t length) {
  return std::min(length, (used + kLanes - 1) / kLanes * kLanes);
}

struct CausalSoftmax {
  template <class T>
  static MUONRT_ALWAYS_INLINE T run(int64_t length, T scale, T* scores) {
    T most = scores[0];
    for (int64_t i = 0; i < length; ++i) {
      T* row = scores + i * length;
      const int64_t used = i + 1;
      const int64_t width = padded(used, length);
      std::fill(row + used, row + width, row[0]);
      const T largest = largest_of(row, width);
      most = largest > most ? largest : most;
      for (int64_t j = 0; j < width; ++j) row[j] = exponential((row[j] - largest) * scale);
      std::fill(row + used, row + length, T{0});
      const T inverse = T{1} / sum_of<T>(width, [&](int64_t j) { return row[j]; });
      for (int64_t j = 0; j < width; ++j) row[j] *= inverse;
    }
    return scale * most;
  }
};

struct CausalSoftmaxBackward {
  template <class T>
  static MUONRT_ALWAYS_INLINE void run(int64_t length, T scale, const T* prob, T* dprob) {
    for (int64_t i = 0; i < length; ++i) {
      const T* p = prob + i * length;
      T* dp = dprob + i * length;
      const int64_t used = i + 1;
      const int64_t width = padded(used, length);
      std::fill(dp + used, dp + length, T{0});
      const T dot = sum_of<T>(width, [&](int64_t j) { return p[j] * dp[j]; });
      for (int64_t j = 0; j < width; ++j) dp[j] = p[j] * (dp[j] - dot) * scale;
    }
  }
};

struct CrossEntropy {
  template <class T>
  static MUONRT_ALWAYS_INLINE double run(int64_t vocab, int64_t target, T grad_scale, T* logits) {
    const T largest = largest_of(logits, vocab);
    const double to_target = static_cast<double>(largest) - static_cast<double>(logits[target]);
    for (int64_t j = 0; j < vocab; ++j) logits[j] = exponential(logits[j] - largest);
    const T sum = sum_of<T>(vocab, [&](int64_t j) { return logits[j]; });
    const T factor = grad_scale / sum;
    for (int64_t j = 0; j < vocab; ++j) logits[j] *= factor;
    logits[target] -= grad_scale;
    return std::log(static_cast<double>(sum)) + to_target;
  }
};

/// A loop in the widest instruction set of this machine; the bits are the same in all.
template <class Pass, class... Args>
auto best(Args... args) {
  static const host::Isa isa = host::best_isa();
  return host::run_pass<Pass>(isa, args...);
}

}  // namespace

template <class T>
void Layers<T>::embed(const Tokens& in, int64_t d, const T* wte, const T* wpe, T* out) {
  for (int64_t s = 0; s < in.sequences; ++s) {
    for (int64_t t = 0; t < in.length; ++t, out += d) {
      const T* token = wte + in.at(s)[t] * d;
      const T* position = wpe + t * d;
      for (int64_t i = 0; i < d; ++i) out[i] = token[i] + position[i];
    }
  }
}

template <class T>
void Layers<T>::embed_backward(const Tokens& in, int64_t d, int64_t vocab, const T* dout, T* dwte,
                               T* dwpe) {
  std::fill_n(dwte, vocab * d, T{0});
  std::fill_n(dwpe, in.length * d, T{0});
  for (int64_t s = 0; s < in.sequences; ++s) {
    for (int64_t t = 0; t < in.length; ++t, dout += d) {
      T* token = dwte + in.at(s)[t] * d;
      T* position = dwpe + t * d;
      for (int64_t i = 0; i < d; ++i) {
        token[i] += dout[i];
        position[i] += dout[i];
      }
    }
  }
}

template <class T>
void Layers<T>::rms_norm(int64_t rows, int64_t d, const T* x, const T* gain, T* y, T* inv) {
  best<RmsNorm>(rows, d, x, gain, y, inv);
}
template <class T>
void Layers<T>::rms_norm_backward(int64_t rows, int64_t d, const T* x, const T* gain, const T* inv,
                                  const T* dy, T* dx, T* dgain) {
  best<RmsNormBackward>(rows, d, x, gain, inv, dy, dx, dgain);
}
template <class T>
void Layers<T>::gelu(int64_t n, const T* x, T* y) {
  best<Gelu>(n, x, y);
}
template <class T>
void Layers<T>::gelu_backward(int64_t n, const T* x, T* dy) {
  best<GeluBackward>(n, x, dy);
}
template <class T>
T Layers<T>::causal_softmax(int64_t length, T scale, T* scores) {
  return best<CausalSoftmax>(length, scale, scores);
}
template <class T>
void Layers<T>::causal_softmax_backward(int64_t length, T scale, const T* prob, T* dprob) {
  best<CausalSoftmaxBackward>(length, scale, prob, dprob);
}
template <class T>
double Layers<T>::cross_entropy(int64_t vocab, int64_t target, T grad_scale, T* logits) {
  return best<CrossEntropy>(vocab, target, grad_scale, logits);
}

template struct Layers<float>;
template struct Layers<double>;

}  // namespace muonrt::train
