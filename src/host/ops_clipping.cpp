#include <array>
#include <atomic>
#include <limits>

#include "backend/clipping.hpp"
#include "backend/qk_clip.hpp"
#include "host/dtype_dispatch.hpp"
#include "host/findings.hpp"
#include "host/host_ops.hpp"
#include "host/host_stream.hpp"

namespace muonrt::host {

namespace {

template <class Grad>
void add_squares(const Grad* grad, int64_t n, int64_t* sums) {
  std::array<int64_t, kNormWords> mine{};
  for (int64_t i = 0; i < n; ++i) {
    const SquareTerm term = square_term(to_f32(grad[i]));
    mine[static_cast<size_t>(term.word)] += term.low;
    mine[static_cast<size_t>(term.word) + 1] += term.high;
  }
  for (size_t w = 0; w < mine.size(); ++w) {
    if (mine[w]) std::atomic_ref(sums[w]).fetch_add(mine[w], std::memory_order_relaxed);
  }
}

}  // namespace

void HostOps::sum_squares(Stream& stream, std::span<const int32_t> list, const ParamView* params,
                          int64_t* sums) {
  if (list.empty()) return;
  host_stream(stream).enqueue(Task([=, this] {
    for (const int32_t index : list) {
      const ParamView& view = params[index];
      if (!view.active && !view.clip_only) continue;
      spread_range(view.grads(), [&](int64_t begin, int64_t end) {
        with_dtype(view.grad_dtype, [&](auto grad) {
          using Grad = decltype(grad);
          add_squares(static_cast<const Grad*>(view.grad) + begin, end - begin, sums);
        });
      });
    }
  }));
}

void HostOps::scale_gradients(Stream& stream, const GradientFactors& factors, const NormClip& clip,
                              const GradientTables& tables, Findings* findings, double* norm) {
  host_stream(stream).enqueue(Task([=] {
    const GradientScale scale = gradient_scale(factors, clip);
    for (int64_t i = 0; i < tables.param_count; ++i) tables.params[i].grad_scale = scale.factor;
    for (int64_t i = 0; i < tables.adam_count; ++i) tables.adam[i].grad_scale = scale.factor;
    for (int64_t i = 0; i < tables.group_count; ++i) tables.groups[i].grad_scale = scale.factor;
    if (!scale.well) note_nonfinite(*findings);
    findings->factor = scale.seen;
    *norm = scale.norm;
  }));
}

void HostOps::take_logits(Stream& stream, const float* from, float* to, int64_t count) {
  host_stream(stream).enqueue(Task([=] {
    for (int64_t i = 0; i < count; ++i)
      to[i] = from ? from[i] : -std::numeric_limits<float>::infinity();
  }));
}

void HostOps::clip_heads(Stream& stream, const QkClip& clip, Findings* findings) {
  host_stream(stream).enqueue(Task([=] {
    bool bad = false;
    for (int64_t head = 0; head < clip.heads; ++head) bad |= qk_bad_logit(clip.logits[head]);
    if (bad) note_nonfinite(*findings);
    for (int64_t row = 0; row < clip.rows; ++row) clip.factors[row] = qk_row_factor(clip, row);
  }));
}

}  // namespace muonrt::host
