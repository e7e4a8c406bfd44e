#pragma once

#include <cmath>
#include <cstdint>

#include "backend/scalars.hpp"

// QK-clip limits attention logits: if the largest logit of a head exceeds a threshold, the rows of
// query and key weights that belong to this head are scaled down. All backends share these
// formulas. Source: Kimi K2 (arXiv 2507.20534), algorithm 1.

namespace muonrt {

enum class QkKind : int32_t {
  kNone = 0,
  kQuery = 1,
  kKey = 2,
  kMlaQuery = 3,
  kMlaKeyValue = 4,
  kQkv = 5,
  kQkvBlocks = 6,
  kFromName = 7  // only used in settings; replaced when an optimizer is created
};

/// The query or key weight of an attention layer, with the settings of QK-clip for it.
struct QkClip {
  QkKind kind = QkKind::kNone;
  int32_t heads = 0, kv_heads = 0;        // heads is a multiple of kv_heads
  int32_t head_dim = 0;                   // used by kQuery, kKey, kQkv and kQkvBlocks
  int32_t nope = 0, rope = 0, v_dim = 0;  // used by kMlaQuery and kMlaKeyValue
  float threshold = 100.0f, exponent = 0.5f;
  int64_t rows = 0;               // rows of the whole weight
  const float* logits = nullptr;  // the largest logit of each query head
  /// One value for each query head: 0 if the head must not be clipped. If null, all heads may be
  /// clipped.
  const int32_t* selected = nullptr;
  float* factors = nullptr;  // one factor for each row of the whole weight
};

MUONRT_HOST_DEVICE inline float qk_gamma(const QkClip& c, int64_t head) {
  if (c.selected && !c.selected[head]) return 1.0f;
  const float logit = c.logits[head];
  return logit > c.threshold ? c.threshold / logit : 1.0f;
}

/// Returns the smallest gamma of the query heads that share a key head.
MUONRT_HOST_DEVICE inline float qk_group_gamma(const QkClip& c, int64_t group) {
  const int64_t each = c.heads / c.kv_heads;
  float smallest = 1.0f;
  for (int64_t head = group * each; head < (group + 1) * each; ++head) {
    const float gamma = qk_gamma(c, head);
    smallest = gamma < smallest ? gamma : smallest;
  }
  return smallest;
}

MUONRT_HOST_DEVICE inline float qk_power(float gamma, float exponent) {
  if (gamma == 1.0f || exponent == 1.0f) return gamma;
  if (exponent == 0.5f) return sqrtf(gamma);
  return static_cast<float>(pow(static_cast<double>(gamma), static_cast<double>(exponent)));
}

/// Returns the factor of row `row` of the whole weight.
MUONRT_HOST_DEVICE inline float qk_row_factor(const QkClip& c, int64_t row) {
  const int64_t each = c.heads / c.kv_heads;
  float gamma = 1.0f, exponent = 1.0f;
  const auto query = [&](int64_t head) {
    gamma = qk_gamma(c, head);
    exponent = c.exponent;
  };
  const auto key = [&](int64_t group) {
    gamma = qk_group_gamma(c, group);
    exponent = 1.0f - c.exponent;
  };
  switch (c.kind) {
    case QkKind::kQuery:
      query(row / c.head_dim);
      break;
    case QkKind::kKey:
      key(row / c.head_dim);
      break;
    case QkKind::kMlaQuery: {
      // In MLA, a logit is the sum of two query-key products: one for the parts with rotary
      // embedding, and one for the other parts. If queries and keys had different gammas, the two
      // terms would shrink by different factors. Queries and keys therefore use the smallest gamma
      // of the heads that share a key.
      const int64_t stride = c.nope + c.rope;
      gamma = qk_group_gamma(c, row / stride / each);
      if (row % stride < c.nope) exponent = c.exponent;
      break;
    }
    case QkKind::kMlaKeyValue: {
      const int64_t stride = c.nope + c.v_dim;
      if (row % stride < c.nope) key(row / stride);
      break;
    }
    case QkKind::kQkv: {
      const int64_t stride = (each + 2) * c.head_dim, group = row / stride;
      const int64_t head = row % stride / c.head_dim;
      if (head < each) query(group * each + head);
      if (head == each) key(group);
      break;
    }
    case QkKind::kQkvBlocks: {
      const int64_t head = row / c.head_dim;
      if (head < c.heads) {
        query(head);
      } else if (head < c.heads + c.kv_heads) {
        key(head - c.heads);
      }
      break;
    }
    case QkKind::kNone:
    case QkKind::kFromName:
      break;
  }
  return qk_power(gamma, exponent);
}

/// Returns whether a logit is NaN or +inf, so that the step must be rejected. -inf is valid: it is
/// the value of a head that no rank has.
MUONRT_HOST_DEVICE inline bool qk_bad_logit(float logit) {
  return !(logit < 0.0f) && !(logit - logit == 0.0f);
}

}  // namespace muonrt
