#include "train/model/layers.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "host/isa.hpp"

namespace muonrt::train {
namespace {

constexpr float kRmsEps = 1e-6f;
constexpr float kGeluScale = 1.5957691216057308f;                   // 2 sqrt(2 / pi)
constexpr float kGeluCube = 0.044715f, kGeluCubeSlope = 0.134145f;  // three times kGeluCube

/// Number of partial sums in each sum over a row. It is fixed, so that the order of the additions
/// does not depend on the instruction set.
constexpr int64_t kLanes = 16;

/// Computes exp(x). The model needs exp(x) once for about every five multiplications by a weight,
/// and the standard library's function is not vectorized. This version has no branch and no table.
/// Its relative error is below 3e-7 on [-87, 88], and inputs outside of this range are clamped.
MUONRT_ALWAYS_INLINE float exponential(float x) {
  constexpr float kLn2High = 0.693359375f;  // few significant bits, so n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * 1.44269504f + kShift;
  const float n = shifted - kShift;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040.0f;  // Taylor series with |r| <= ln(2) / 2
  for (const float term :
       {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f}) {
    p = p * r + term;
  }
  // The low bits of `shifted` are n, which is added to the exponent.
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) +
                              (std::bit_cast<uint32_t>(shifted) << 23));
}

/// Returns the sum of term(i) for i in [0, n).
template <class Term>
MUONRT_ALWAYS_INLINE float sum_of(int64_t n, Term term) {
  float lanes[kLanes] = {};
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

/// Returns the largest of x[0..n) for n >= 1. May ignore a NaN.
MUONRT_ALWAYS_INLINE float largest_of(const float* x, int64_t n) {
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, x[0]);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
  }
  for (int64_t j = 0; i < n; ++i, ++j) lanes[j] = x[i] > lanes[j] ? x[i] : lanes[j];
  return *std::max_element(lanes, lanes + kLanes);
}

struct RmsNorm {
  static MUONRT_ALWAYS_INLINE void run(int64_t rows, int64_t d, const float* x, const float* gain,
                                       float* y, float* inv) {
    for (int64_t r = 0; r < rows; ++r) {
      const float* __restrict in = x + r * d;
      float* __restrict out = y + r * d;
      const float squares = sum_of(d, [&](int64_t i) { return in[i] * in[i]; });
      const float root = 1.0f / std::sqrt(squares / static_cast<float>(d) + kRmsEps);
      for (int64_t i = 0; i < d; ++i) out[i] = in[i] * root * gain[i];
      inv[r] = root;
    }
  }
};

struct RmsNormBackward {
  static MUONRT_ALWAYS_INLINE void run(int64_t rows, int64_t d, const float* x, const float* gain,
                                       const float* inv, const float* dy, float* dx,
                                       float* __restrict dgain) {
    std::fill(dgain, dgain + d, 0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      const float* __restrict in = x + r * d;
      const float* __restrict dout = dy + r * d;
      float* __restrict din = dx + r * d;
      const float root = inv[r];
      const float dot = sum_of(d, [&](int64_t i) { return gain[i] * dout[i] * in[i]; });
      const float along = dot * root * root * root / static_cast<float>(d);
      for (int64_t i = 0; i < d; ++i) {
        dgain[i] += dout[i] * in[i] * root;
        din[i] += gain[i] * dout[i] * root - in[i] * along;
      }
    }
  }
};

MUONRT_ALWAYS_INLINE float gelu_gate(float x) {
  const float z = kGeluScale * (x + kGeluCube * x * x * x);
  return 1.0f / (1.0f + exponential(-z));
}

struct Gelu {
  static MUONRT_ALWAYS_INLINE void run(int64_t n, const float* x, float* y) {
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * gelu_gate(x[i]);
  }
};

struct GeluBackward {
  static MUONRT_ALWAYS_INLINE void run(int64_t n, const float* x, float* dy) {
    for (int64_t i = 0; i < n; ++i) {
      const float gate = gelu_gate(x[i]);
      const float slope = kGeluScale * (1.0f + kGeluCubeSlope * x[i] * x[i]);
      dy[i] *= gate + x[i] * gate * (1.0f - gate) * slope;
    }
  }
};

// Each row is processed up to a multiple of the number of lanes. Elements to the right of the
// diagonal become zero.
inline int64_t padded(int64_t used, int64_t length) {
  return std::min(length, (used + kLanes - 1) / kLanes * kLanes);
}

struct CausalSoftmax {
  static MUONRT_ALWAYS_INLINE float run(int64_t length, float scale, float* scores) {
    float most = scores[0];
    for (int64_t i = 0; i < length; ++i) {
      float* row = scores + i * length;
      const int64_t used = i + 1;
      const int64_t width = padded(used, length);
      std::fill(row + used, row + width, row[0]);
      const float largest = largest_of(row, width);
      most = largest > most ? largest : most;
      for (int64_t j = 0; j < width; ++j) row[j] = exponential((row[j] - largest) * scale);
      std::fill(row + used, row + length, 0.0f);
      const float inverse = 1.0f / sum_of(width, [&](int64_t j) { return row[j]; });
      for (int64_t j = 0; j < width; ++j) row[j] *= inverse;
    }
    return scale * most;
  }
};

struct CausalSoftmaxBackward {
  static MUONRT_ALWAYS_INLINE void run(int64_t length, float scale, const float* prob,
                                       float* dprob) {
    for (int64_t i = 0; i < length; ++i) {
      const float* p = prob + i * length;
      float* dp = dprob + i * length;
      const int64_t used = i + 1;
      const int64_t width = padded(used, length);
      std::fill(dp + used, dp + length, 0.0f);
      const float dot = sum_of(width, [&](int64_t j) { return p[j] * dp[j]; });
      for (int64_t j = 0; j < width; ++j) dp[j] = p[j] * (dp[j] - dot) * scale;
    }
  }
};

struct CrossEntropy {
  static MUONRT_ALWAYS_INLINE double run(int64_t vocab, int64_t target, float grad_scale,
                                         float* logits) {
    const float largest = largest_of(logits, vocab);
    const double to_target = static_cast<double>(largest) - static_cast<double>(logits[target]);
    for (int64_t j = 0; j < vocab; ++j) logits[j] = exponential(logits[j] - largest);
    const float sum = sum_of(vocab, [&](int64_t j) { return logits[j]; });
    const float factor = grad_scale / sum;
    for (int64_t j = 0; j < vocab; ++j) logits[j] *= factor;
    logits[target] -= grad_scale;
    return std::log(static_cast<double>(sum)) + to_target;
  }
};

/// Runs a loop with the widest instruction set of this machine. The results do not depend on it.
template <class Pass, class... Args>
auto best(Args... args) {
  static const host::Isa isa = host::best_isa();
  return host::run_pass<Pass>(isa, args...);
}

}  // namespace

void Layers::embed(const Tokens& in, int64_t d, const float* wte, const float* wpe, float* out) {
  for (int64_t s = 0; s < in.sequences; ++s) {
    for (int64_t t = 0; t < in.length; ++t, out += d) {
      const float* token = wte + in.at(s)[t] * d;
      const float* position = wpe + t * d;
      for (int64_t i = 0; i < d; ++i) out[i] = token[i] + position[i];
    }
  }
}

void Layers::embed_backward(const Tokens& in, int64_t d, int64_t vocab, const float* dout,
                            float* dwte, float* dwpe) {
  std::fill_n(dwte, vocab * d, 0.0f);
  std::fill_n(dwpe, in.length * d, 0.0f);
  for (int64_t s = 0; s < in.sequences; ++s) {
    for (int64_t t = 0; t < in.length; ++t, dout += d) {
      float* token = dwte + in.at(s)[t] * d;
      float* position = dwpe + t * d;
      for (int64_t i = 0; i < d; ++i) {
        token[i] += dout[i];
        position[i] += dout[i];
      }
    }
  }
}

void Layers::rms_norm(int64_t rows, int64_t d, const float* x, const float* gain, float* y,
                      float* inv) {
  best<RmsNorm>(rows, d, x, gain, y, inv);
}
void Layers::rms_norm_backward(int64_t rows, int64_t d, const float* x, const float* gain,
                               const float* inv, const float* dy, float* dx, float* dgain) {
  best<RmsNormBackward>(rows, d, x, gain, inv, dy, dx, dgain);
}
void Layers::gelu(int64_t n, const float* x, float* y) { best<Gelu>(n, x, y); }
void Layers::gelu_backward(int64_t n, const float* x, float* dy) { best<GeluBackward>(n, x, dy); }
float Layers::causal_softmax(int64_t length, float scale, float* scores) {
  return best<CausalSoftmax>(length, scale, scores);
}
void Layers::causal_softmax_backward(int64_t length, float scale, const float* prob, float* dprob) {
  best<CausalSoftmaxBackward>(length, scale, prob, dprob);
}
double Layers::cross_entropy(int64_t vocab, int64_t target, float grad_scale, float* logits) {
  return best<CrossEntropy>(vocab, target, grad_scale, logits);
}

}  // namespace muonrt::train
