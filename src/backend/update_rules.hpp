#pragma once

#include <cmath>
#include <limits>

#include "backend/scalars.hpp"

// The elementwise formulas, shared by every backend so that the bits are those of one text. Plain
// float expressions; builds turn contraction off.

namespace muonrt {

/// The new value of a buffer that decays and to which the gradient `g` was added. A subnormal value
/// becomes zero if `g` is exactly zero, because repeated rounding would hold it above zero forever:
/// 0.95 x 9 rounds to 9 in units of 2^-149. A buffer that is stored as bf16 has f32's exponents, so
/// its values follow the same rule, before they are rounded.
MUONRT_HOST_DEVICE inline float at_rest(float value, float g) {
  constexpr float kLeastNormal = std::numeric_limits<float>::min();
  return ((g == 0.0f) & (fabsf(value) < kLeastNormal)) ? 0.0f : value;
}

/// New momentum buffer. Sources: KellerJordan/Muon (EMA), MoonshotAI/Moonlight (heavy ball).
MUONRT_HOST_DEVICE inline float next_momentum(float m, float g, const MuonScalars& s) {
  return at_rest(s.heavy_ball ? s.momentum * m + g : s.momentum * m + (1.0f - s.momentum) * g, g);
}

/// The direction that is orthogonalized, given the new momentum buffer. Sources: the same; the
/// corrections: optax.contrib.muon.
MUONRT_HOST_DEVICE inline float direction(float m_next, float g, const MuonScalars& s) {
  if (!s.nesterov) return s.momentum_correction * m_next;
  const float part = s.heavy_ball ? g : (1.0f - s.momentum) * s.gradient_correction * g;
  return part + s.momentum * s.momentum_correction * m_next;
}

/// What remains of a weight after decay. Cautious: only where update and weight do not differ in
/// sign (an update of zero decays). Source: cautious weight decay, arXiv 2510.12402.
MUONRT_HOST_DEVICE inline float decayed(float w, float update, float decay, int32_t cautious) {
  const bool apart = ((update > 0.0f) & (w < 0.0f)) | ((update < 0.0f) & (w > 0.0f));
  return w * (((cautious != 0) & apart) ? 1.0f : 1.0f - decay);
}

/// Weight after decay and update. `scale` is the shape's scale rule times the piece's rate factor,
/// `decay_scale` what that factor makes of the decay.
MUONRT_HOST_DEVICE inline float muon_update(float w, float o, float scale, float decay_scale,
                                            const MuonScalars& s) {
  return decayed(w, o, s.decay * decay_scale, s.cautious) - (s.rate * scale) * o;
}

/// AdamW. Updates both moments, returns the new weight. Source: Loshchilov and Hutter 2019,
/// Algorithm 2. Folded: eps beside the uncorrected root, which is Algorithm 2 with
/// eps / sqrt(1 - beta2^t).
MUONRT_HOST_DEVICE inline float adamw_update(float w, float g, float& m, float& v,
                                             const AdamScalars& s) {
  m = at_rest(s.beta1 * m + (1.0f - s.beta1) * g, g);
  v = at_rest(s.beta2 * v + (1.0f - s.beta2) * (g * g), g);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float root = sqrtf(v * s.correction2) + s.eps;
  // Without eps an element that never had a gradient has no step: 0 / 0 is 0 here. A divisor, not
  // a branch: compilers do not vectorise a division behind one.
  const float mean = m * s.correction1 + s.gradient_weight * g;
  const float step = mean / (root > 0.0f ? root : kInfinity);
  return decayed(w, step, s.decay, s.cautious) - s.rate * step;
}

}  // namespace muonrt
