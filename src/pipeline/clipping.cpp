#include "pipeline/clipping.hpp"

#include "base/checked.hpp"

namespace muonrt {

namespace {

constexpr int64_t kSquaresBytes = kNormWords * 8;

}  // namespace

Clipping::Clipping(const PipelineContext& context, ClippingConfig config)
    : context_(&context), config_(std::move(config)) {
  Device& device = *context.device;
  const int64_t logit_bytes = round_up(config_.logits * 4, 64);
  memory_ = Buffer(device, 2 * kSquaresBytes + 64 + 2 * logit_bytes);
  host_copy_ = Buffer::shared(device, 8 + logit_bytes);
  char* at = memory_.as<char>();
  own_squares_ = reinterpret_cast<int64_t*>(at);
  all_squares_ = reinterpret_cast<int64_t*>(at + kSquaresBytes);
  norm_ = reinterpret_cast<double*>(at + 2 * kSquaresBytes);
  own_logits_ = reinterpret_cast<float*>(at + 2 * kSquaresBytes + 64);
  logits_ = reinterpret_cast<float*>(at + 2 * kSquaresBytes + 64 + logit_bytes);
  for (ClippedWeight& weight : config_.clipped) weight.clip.logits = logits_ + weight.logits_at;
  if (config_.clip_norm > 0) context.comm->prepare_reduction(kSquaresBytes);
  if (config_.logits > 0) context.comm->prepare_reduction(config_.logits * 4);
  ready_ = device.create_event();
  reduced_ = device.create_event();
}

void Clipping::exchange() {
  const PipelineContext& c = *context_;
  c.device->record(*ready_, *c.compute);
  c.device->wait(*c.exchange, *ready_);
  if (!c.warming_up) {
    if (config_.clip_norm > 0)
      c.comm->reduce_sum(*c.exchange, own_squares_, all_squares_, kNormWords);
    if (config_.logits > 0) c.comm->reduce_max(*c.exchange, own_logits_, logits_, config_.logits);
  }
  c.device->record(*reduced_, *c.exchange);
  c.device->wait(*c.compute, *reduced_);
}

void Clipping::enqueue(const StepInputs& inputs) {
  const PipelineContext& c = *context_;
  Stream& s = *c.compute;
  const bool clips = config_.clip_norm > 0;
  c.ops().fill(s, norm_, 0, sizeof(double));
  if (clips) {
    c.ops().fill(s, own_squares_, 0, kSquaresBytes);
    c.ops().sum_squares(s, config_.norm_params, c.tables.params, own_squares_);
  }
  if (config_.logits > 0) c.ops().take_logits(s, inputs.qk_logits, own_logits_, config_.logits);
  if (clips || config_.logits > 0) exchange();
  if (clips || inputs.factors.on_device() || c.warming_up)
    c.ops().scale_gradients(s, inputs.factors, {.norm = config_.clip_norm, .sums = all_squares_},
                            config_.tables, c.results.findings, norm_);
  for (const ClippedWeight& weight : config_.clipped)
    c.ops().clip_heads(s, weight.clip, c.results.findings);
}

void Clipping::report() {
  Ops& ops = context_->ops();
  ops.copy(*context_->compute, host_copy_.data(), norm_, sizeof(double));
  if (config_.logits > 0)
    ops.copy(*context_->compute, host_copy_.as<double>() + 1, logits_, config_.logits * 4);
}

}  // namespace muonrt
