#include "pipeline/clipping.hpp"

#include "base/checked.hpp"

namespace muonrt {

namespace {

constexpr int64_t kWordBytes = kNormWords * 8;

}  // namespace

Clipping::Clipping(const PipelineContext& context, ClippingConfig work)
    : context_(&context), work_(std::move(work)) {
  Device& device = *context.device;
  const int64_t logit_bytes = round_up(work_.logits * 4, 64);
  memory_ = Buffer(device, 2 * kWordBytes + 64 + 2 * logit_bytes);
  mirror_ = Buffer::shared(device, 8 + logit_bytes);
  char* at = memory_.as<char>();
  mine_ = reinterpret_cast<int64_t*>(at);
  all_ = reinterpret_cast<int64_t*>(at + kWordBytes);
  norm_ = reinterpret_cast<double*>(at + 2 * kWordBytes);
  my_logits_ = reinterpret_cast<float*>(at + 2 * kWordBytes + 64);
  logits_ = reinterpret_cast<float*>(at + 2 * kWordBytes + 64 + logit_bytes);
  for (ClippedWeight& weight : work_.clipped) weight.clip.logits = logits_ + weight.logits_at;
  if (work_.clip_norm > 0) context.comm->prepare_reduction(kWordBytes);
  if (work_.logits > 0) context.comm->prepare_reduction(work_.logits * 4);
  ready_ = device.create_event();
  reduced_ = device.create_event();
}

void Clipping::exchange() {
  const PipelineContext& c = *context_;
  c.device->record(*ready_, *c.compute);
  c.device->wait(*c.exchange, *ready_);
  if (!c.warming_up) {
    if (work_.clip_norm > 0) c.comm->reduce_sum(*c.exchange, mine_, all_, kNormWords);
    if (work_.logits > 0) c.comm->reduce_max(*c.exchange, my_logits_, logits_, work_.logits);
  }
  c.device->record(*reduced_, *c.exchange);
  c.device->wait(*c.compute, *reduced_);
}

void Clipping::enqueue(const StepInputs& run) {
  const PipelineContext& c = *context_;
  Stream& s = *c.compute;
  const bool clips = work_.clip_norm > 0;
  c.ops().fill(s, norm_, 0, sizeof(double));
  if (clips) {
    c.ops().fill(s, mine_, 0, kWordBytes);
    c.ops().sum_squares(s, work_.norm_params, c.tables.params, mine_);
  }
  if (work_.logits > 0) c.ops().take_logits(s, run.qk_logits, my_logits_, work_.logits);
  if (clips || work_.logits > 0) exchange();
  if (clips || run.factors.on_device() || c.warming_up)
    c.ops().scale_gradients(s, run.factors, {.norm = work_.clip_norm, .sums = all_}, work_.tables,
                            c.results.findings, norm_);
  for (const ClippedWeight& weight : work_.clipped)
    c.ops().clip_heads(s, weight.clip, c.results.findings);
}

void Clipping::report() {
  Ops& ops = context_->ops();
  ops.copy(*context_->compute, mirror_.data(), norm_, sizeof(double));
  if (work_.logits > 0)
    ops.copy(*context_->compute, mirror_.as<double>() + 1, logits_, work_.logits * 4);
}

}  // namespace muonrt
