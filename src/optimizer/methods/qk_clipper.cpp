#include "optimizer/methods/qk_clipper.hpp"

#include <algorithm>
#include <map>

#include "base/checked.hpp"
#include "optimizer/methods/qk_clip.hpp"

namespace muonrt {

namespace {

bool may_clip(const QkClipSettings& c, int32_t head) {
  return !c.selects || std::find(c.select.begin(), c.select.end(), head) != c.select.end();
}

/// Returns, for each layer, the index of its first logit.
std::map<int32_t, int64_t> logits_of(const std::vector<QkLogits>& layers) {
  std::map<int32_t, int64_t> out;
  for (const QkLogits& layer : layers) out[layer.layer] = layer.logits_at;
  return out;
}

}  // namespace

QkClipper::QkClipper(Device& device, const OptimizerSettings& settings, ParamView* params) {
  const std::vector<QkLogits> layers = qk_layers(settings);
  logits_ = logit_count(layers);
  int64_t rows = 0, heads = 0;
  for (const ParamSettings& p : settings.params) {
    if (p.qk_clip.kind == QkKind::kNone) continue;
    rows += p.layout.shape()[0];
    heads += p.qk_clip.heads;
  }
  if (rows == 0) return;
  factors_ = Buffer(device, checked_mul(rows, 4));
  selections_ = Buffer::shared(device, checked_mul(heads, 4));
  float* factors = factors_.as<float>();
  int32_t* selected = selections_.as<int32_t>();
  std::map<int32_t, int64_t> begin = logits_of(layers);
  for (size_t i = 0; i < settings.params.size(); ++i) {
    const ParamSettings& p = settings.params[i];
    const QkClipSettings& c = p.qk_clip;
    if (c.kind == QkKind::kNone) continue;
    weights_.push_back({{c.kind, c.heads, c.kv_heads, c.head_dim, c.nope, c.rope, c.v_dim,
                         static_cast<float>(c.threshold), static_cast<float>(c.exponent),
                         p.layout.shape()[0], nullptr, c.selects ? selected : nullptr, factors},
                        begin[c.layer]});
    clipping_params_.push_back({i, begin[c.layer]});
    std::fill_n(selected, c.heads, 0);
    for (const int32_t head : c.select) selected[head] = 1;
    params[i].row_factors = factors;
    factors += p.layout.shape()[0];
    selected += c.heads;
  }
  clipped_.reserve(static_cast<size_t>(heads));
}

// Runs after the vote, so it must not allocate.
void QkClipper::on_commit(const OptimizerSettings& settings, const ParamView* params,
                          const float* logits) {
  if (logits_ == 0) return;
  clipped_.clear();
  for (const Weight& weight : clipping_params_) {
    const QkClipSettings& c = settings.params[weight.param].qk_clip;
    if (!params[weight.param].active) continue;
    for (int32_t head = 0; head < c.heads; ++head) {
      const float logit = logits[weight.logits_at + head];
      if (may_clip(c, head) && logit > static_cast<float>(c.threshold))
        clipped_.emplace_back(c.layer, head);
    }
  }
  std::sort(clipped_.begin(), clipped_.end());
  clipped_.erase(std::unique(clipped_.begin(), clipped_.end()), clipped_.end());
}

}  // namespace muonrt
