#include <limits>

#include "api/guard.hpp"
#include "muonrt/optimizer.h"
#include "muonrt/state.h"
#include "optimizer/settings.hpp"

// Every default of the C structs, taken from the settings that the library itself starts from.

using muonrt::GroupSettings;
using muonrt::OptimizerSettings;
using muonrt::Role;

namespace {

template <class T>
bool clear(T* to) {
  if (!to) return false;
  *to = T{};
  to->struct_size = sizeof(T);
  return true;
}

}  // namespace

extern "C" {

void(muonrt_group_init)(muonrt_group_t* group, int32_t role) {
  if (!clear(group)) return;
  const GroupSettings d = GroupSettings::defaults(static_cast<Role>(role));
  group->role = role;
  group->lr_factor = d.lr_factor;
  group->weight_decay = d.weight_decay;
  group->momentum = d.momentum;
  group->momentum_kind = static_cast<int32_t>(d.momentum_kind);
  group->nesterov = d.nesterov;
  group->coefficients = static_cast<int32_t>(d.coefficients);
  group->steps = d.steps;
  group->lower_bound = d.lower_bound;
  group->cushion = d.cushion;
  group->safety = d.safety;
  group->safety_mode = static_cast<int32_t>(d.safety_mode);
  group->normalize = static_cast<int32_t>(d.normalize);
  group->scale_rule = static_cast<int32_t>(d.scale_rule);
  group->form = static_cast<int32_t>(d.form);
  group->scale_factor = d.scale_factor;
  group->beta1 = d.beta1;
  group->beta2 = d.beta2;
  group->eps = d.eps;
  group->normalize_eps = d.normalize_eps;
  group->row_scaling = static_cast<int32_t>(d.row_scaling);
  group->block_period = d.blocks.period;
  group->block_rows = d.blocks.rows;
  group->block_cols = d.blocks.cols;
  group->block_lr_factor = d.blocks.lr_factor;
  group->weight_decay_kind = static_cast<int32_t>(d.weight_decay_kind);
  group->adam_form = static_cast<int32_t>(d.adam_form);
  group->update_every = d.update_every;
  group->momentum_dtype = static_cast<int32_t>(d.momentum_dtype);
  group->normuon = static_cast<int32_t>(d.normuon);
  group->normuon_beta2 = d.normuon_beta2;
}

void(muonrt_part_init)(muonrt_part_t* part) {
  if (!clear(part)) return;
  part->scale_factor = 1.0;
  part->lr_factor = 1.0;
}

void(muonrt_qk_clip_init)(muonrt_qk_clip_t* clip) {
  if (!clear(clip)) return;
  const muonrt::QkClipSettings d;
  clip->threshold = d.threshold;
  clip->exponent = d.exponent;
}

void(muonrt_param_init)(muonrt_param_t* param) {
  if (!clear(param)) return;
  param->dtype = MUONRT_DTYPE_F32;
  param->owner = -1;
  param->lr_factor = 1.0;
}

void(muonrt_optimizer_options_init)(muonrt_optimizer_options_t* options) {
  if (!clear(options)) return;
  const OptimizerSettings d;
  options->device = MUONRT_DEVICE_HOST;
  options->threads = d.threads;
  options->transport_dtype = static_cast<int32_t>(d.transport);
  options->commit = static_cast<int32_t>(d.commit);
  options->window = d.window;
  options->timeout_ms = d.timeout_ms;
  options->seed = d.seed;
  options->clip_norm = d.clip_norm;
  options->health_every = d.health_every;
  options->reserved_sms = d.reserved_sms;
}

void(muonrt_allocator_init)(muonrt_allocator_t* allocator) { clear(allocator); }

void(muonrt_distributed_config_init)(muonrt_distributed_config_t* config) {
  if (!clear(config)) return;
  config->async_parallelism = 1;
  config->prefetch_count = 1;
}

void(muonrt_step_init)(muonrt_step_t* step) {
  if (!clear(step)) return;
  step->lr = std::numeric_limits<double>::quiet_NaN();
  step->grad_scale_inv = 1.0;
}

void(muonrt_report_init)(muonrt_report_t* report) {
  if (!clear(report)) return;
  report->nonfinite_rank = -1;
  report->nonfinite_param = -1;
}

void(muonrt_counters_init)(muonrt_counters_t* counters) { clear(counters); }
void(muonrt_state_view_init)(muonrt_state_view_t* view) { clear(view); }

}  // extern "C"
