#pragma once

#include <cmath>

#include "backend/scalars.hpp"

// The elementwise formulas, shared by every backend so that the bits are those of one text. Plain
// float expressions; builds turn contraction off.
#if defined(__CUDACC__)
#define MUONRT_HOST_DEVICE __host__ __device__
#else
#define MUONRT_HOST_DEVICE
#endif

namespace muonrt {

/// New momentum buffer. Source: reference numerics, section 2.
MUONRT_HOST_DEVICE inline float next_momentum(float m, float g, const MuonScalars& s) {
  return s.heavy_ball ? s.momentum * m + g : s.momentum * m + (1.0f - s.momentum) * g;
}

/// What is orthogonalized, given the new momentum buffer. Source: the same.
MUONRT_HOST_DEVICE inline float direction(float m_next, float g, const MuonScalars& s) {
  if (!s.nesterov) return m_next;
  return s.heavy_ball ? g + s.momentum * m_next : (1.0f - s.momentum) * g + s.momentum * m_next;
}

/// Weight after decoupled decay and update. `scale` is the shape's scale rule.
MUONRT_HOST_DEVICE inline float muon_update(float w, float o, float scale, const MuonScalars& s) {
  return w * (1.0f - s.decay) - (s.rate * scale) * o;
}

/// AdamW, form A. Updates both moments, returns the new weight. Source: Loshchilov and Hutter 2019,
/// Algorithm 2; eps placed as in reference numerics, section 12, form A.
MUONRT_HOST_DEVICE inline float adamw_update(float w, float g, float& m, float& v,
                                             const AdamScalars& s) {
  m = s.beta1 * m + (1.0f - s.beta1) * g;
  v = s.beta2 * v + (1.0f - s.beta2) * (g * g);
  const float root = sqrtf(v * s.correction2) + s.eps;
  // Without eps an element that never had a gradient has no step: 0 / 0 is 0 here.
  const float step = root > 0.0f ? (m * s.correction1) / root : 0.0f;
  return w * (1.0f - s.decay) - s.rate * step;
}

}  // namespace muonrt
