#pragma once

#include <cmath>
#include <limits>

#include "backend/scalars.hpp"

// The elementwise formulas. All backends share them, so their results are bitwise identical. The
// formulas use only float expressions, and no build contracts operations to fused multiply-adds.

namespace muonrt {

/// Returns the new value of a decaying buffer to which the gradient `g` was added. If `g` is
/// exactly zero, a subnormal value becomes zero, because repeated rounding could keep it above zero
/// forever: in units of 2^-149, 0.95 x 9 rounds to 9. The rule also applies to values of bf16
/// buffers before they are rounded, because bf16 has the exponents of f32.
MUONRT_HOST_DEVICE inline float at_rest(float value, float g) {
  constexpr float kLeastNormal = std::numeric_limits<float>::min();
  return ((g == 0.0f) & (fabsf(value) < kLeastNormal)) ? 0.0f : value;
}

/// Returns the new momentum. Sources: KellerJordan/Muon (exponential moving average),
/// MoonshotAI/Moonlight (heavy ball).
MUONRT_HOST_DEVICE inline float next_momentum(float m, float g, const MuonScalars& s) {
  return at_rest(s.heavy_ball ? s.momentum * m + g : s.momentum * m + (1.0f - s.momentum) * g, g);
}

/// Returns the direction that is orthogonalized, from the new momentum and the gradient. Sources:
/// the sources of next_momentum(), and optax.contrib.muon for the corrections.
MUONRT_HOST_DEVICE inline float direction(float m_next, float g, const MuonScalars& s) {
  if (!s.nesterov) return s.momentum_correction * m_next;
  const float part = s.heavy_ball ? g : (1.0f - s.momentum) * s.gradient_correction * g;
  return part + s.momentum * s.momentum_correction * m_next;
}

/// Returns a weight after decay. If `cautious` is set, a weight whose update has the opposite sign
/// does not decay, while a weight with an update of zero does. Source: cautious weight decay, arXiv
/// 2510.12402.
MUONRT_HOST_DEVICE inline float decayed(float w, float update, float decay, int32_t cautious) {
  const bool apart = ((update > 0.0f) & (w < 0.0f)) | ((update < 0.0f) & (w > 0.0f));
  return w * (((cautious != 0) & apart) ? 1.0f : 1.0f - decay);
}

/// Returns a weight after decay and update. `scale` is the factor of the scale rule times the
/// block's learning-rate factor, and `decay_scale` is the block's factor for the decay.
MUONRT_HOST_DEVICE inline float muon_update(float w, float o, float scale, float decay_scale,
                                            const MuonScalars& s) {
  return decayed(w, o, s.decay * decay_scale, s.cautious) - (s.rate * scale) * o;
}

/// Updates both moments of AdamW and returns the new weight. Source: Loshchilov and Hutter 2019,
/// Algorithm 2. With folded corrections, eps is added to the uncorrected root, which corresponds to
/// eps / sqrt(1 - beta2^t) instead of eps in Algorithm 2.
MUONRT_HOST_DEVICE inline float adamw_update(float w, float g, float& m, float& v,
                                             const AdamScalars& s) {
  m = at_rest(s.beta1 * m + (1.0f - s.beta1) * g, g);
  v = at_rest(s.beta2 * v + (1.0f - s.beta2) * (g * g), g);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float root = sqrtf(v * s.correction2) + s.eps;
  // If eps is 0 and an element never had a gradient, 0 / 0 must give 0. The code selects a
  // different divisor, because compilers do not vectorize a division inside a branch.
  const float mean = m * s.correction1 + s.gradient_weight * g;
  const float step = mean / (root > 0.0f ? root : kInfinity);
  return decayed(w, step, s.decay, s.cautious) - s.rate * step;
}

}  // namespace muonrt
