#include <cmath>

#include "support/numerics/reference_ops.hpp"

namespace reference {

using namespace muonrt;

void ReferenceOps::sum_squares(Stream&, std::span<const int32_t> list, const ParamView* params,
                               int64_t* sums) {
  for (const int32_t index : list) {
    const ParamView& p = params[index];
    for (int64_t i = 0; (p.active || p.watched) && i < p.numel; ++i) {
      const SquareTerm term = square_term(load(p.grad, p.grad_dtype, i));
      sums[term.word] += term.low;
      sums[term.word + 1] += term.high;
    }
  }
}

void ReferenceOps::scale_gradients(Stream&, const GradientFactors& factors, const NormClip& clip,
                                   const GradientTables& tables, Findings* findings, double* norm) {
  const GradientScale scale = gradient_scale(factors, clip);
  for (int64_t i = 0; i < tables.param_count; ++i) tables.params[i].grad_scale = scale.factor;
  for (int64_t i = 0; i < tables.adam_count; ++i) tables.adam[i].grad_scale = scale.factor;
  for (int64_t i = 0; i < tables.group_count; ++i) tables.groups[i].grad_scale = scale.factor;
  if (!scale.well) note(findings, -1);
  findings->factor = scale.seen;
  *norm = scale.norm;
}

void ReferenceOps::take_logits(Stream&, const float* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = from ? from[i] : -HUGE_VALF;
}

void ReferenceOps::clip_heads(Stream&, const QkClip& clip, Findings* findings) {
  for (int64_t head = 0; head < clip.heads; ++head)
    if (qk_bad_logit(clip.logits[head])) note(findings, -1);
  for (int64_t row = 0; row < clip.rows; ++row) clip.factors[row] = qk_row_factor(clip, row);
}

}  // namespace reference
