#include <limits>

#include "api/guard.hpp"
#include "muonrt/optimizer.h"
#include "muonrt/state.h"
#include "optimizer/settings/fields.hpp"

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

/// Writes the default of each row.
template <class C, class Settings>
auto fills(C& to, const Settings& defaults) {
  return [&](const auto& row) {
    if constexpr (requires { row.c_place; }) {
      auto& out = row.c_place(to);
      using Value = std::remove_reference_t<decltype(out)>;
      if constexpr (!requires { row.place(defaults).has_value(); }) {
        if (!row.has(muonrt::kZeroIsAbsent)) out = static_cast<Value>(row.place(defaults));
      }
    }
  };
}

}  // namespace

extern "C" {

void(muonrt_group_init)(muonrt_group_t* group, int32_t role) {
  if (!clear(group)) return;
  const GroupSettings defaults = GroupSettings::defaults(static_cast<Role>(role));
  muonrt::visit_group_fields(fills(*group, defaults));
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
  const OptimizerSettings defaults;
  muonrt::visit_option_fields(fills(*options, defaults));
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
