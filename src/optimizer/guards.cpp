#include "base/checked.hpp"
#include "optimizer/optimizer.hpp"
#include "optimizer/qk_clip.hpp"

namespace muonrt {

// Elements of replicas are counted by the first of them, so that each counts once in the world.
GuardWork Optimizer::make_guards() {
  GuardWork out;
  out.clip_norm = settings_.clip_norm;
  const auto count = static_cast<int32_t>(settings_.params.size());
  int64_t rows = 0, heads = 0;
  for (int32_t i = 0; i < count; ++i) {
    const ParamSettings& p = settings_.params[static_cast<size_t>(i)];
    const bool any = params_[i].grads() > 0;
    if (any && grad_layout(p).replica_index(rank()) == 0) out.counted.push_back(i);
    if (any && sums(i) && group_of(i).update_every > 1) out.watched.push_back(i);
    if (p.qk_clip.kind == QkKind::kNone) continue;
    rows += p.layout.shape()[0];
    heads += p.qk_clip.heads;
  }
  const std::vector<QkLogits> layers = qk_layers(settings_);
  out.logits = logits_ = logit_count(layers);
  if (rows == 0) return out;
  row_factors_ = Buffer(*device_, checked_mul(rows, 4));
  selections_ = Buffer::shared(*device_, checked_mul(heads, 4));
  float* factors = row_factors_.as<float>();
  int32_t* selected = selections_.as<int32_t>();
  for (int32_t i = 0; i < count; ++i) {
    const ParamSettings& p = settings_.params[static_cast<size_t>(i)];
    const QkClipSettings& c = p.qk_clip;
    if (c.kind == QkKind::kNone) continue;
    ClippedWeight weight;
    for (const QkLogits& layer : layers)
      if (layer.layer == c.layer) weight.logits_at = layer.logits_at;
    weight.clip = {c.kind,
                   c.heads,
                   c.kv_heads,
                   c.head_dim,
                   c.nope,
                   c.rope,
                   c.v_dim,
                   static_cast<float>(c.threshold),
                   static_cast<float>(c.exponent),
                   p.layout.shape()[0],
                   nullptr,
                   c.selects ? selected : nullptr,
                   factors};
    for (int32_t head = 0; head < c.heads; ++head) selected[head] = 0;
    for (const int32_t head : c.select) selected[head] = 1;
    params_[i].row_factors = factors;
    factors += weight.clip.rows;
    selected += c.heads;
    out.clipped.push_back(weight);
  }
  return out;
}

void Optimizer::check_device_scalars(const StepSettings& step) const {
  for (const auto& [name, pointer] :
       {std::pair{"device_grad_scale_inv", step.device_grad_scale_inv},
        {"grad_multiplier", step.grad_multiplier},
        {"found_inf", step.found_inf},
        {"qk_logits", step.qk_logits}}) {
    MUONRT_REQUIRE(reinterpret_cast<uintptr_t>(pointer) % 4 == 0 && device_->reaches(pointer),
                   Status::kInvalidArgument, "step: ", name,
                   " is not f32 in memory that the device reaches (", device_->describe(),
                   "); pass a buffer of that device");
  }
  MUONRT_REQUIRE(!step.qk_logits || step.n_qk_logits == logits_, Status::kInvalidArgument,
                 "step: n_qk_logits is ", step.n_qk_logits,
                 " (the layers that parameters name have ", logits_,
                 " query heads); pass one logit for each");
  MUONRT_REQUIRE(
      !step.stream || settings_.device == DeviceKind::kCuda, Status::kInvalidArgument,
      "step: stream is given on the host (which has none of the caller's); leave it null");
}

}  // namespace muonrt
