#include <limits>

#include "api/as_status.hpp"
#include "base/sized_struct.hpp"
#include "muonrt/checkpoint.h"
#include "muonrt/inspect.h"
#include "muonrt/optimizer.h"
#include "muonrt/plan.h"
#include "muonrt/state.h"
#include "optimizer/settings/fields.hpp"
#include "optimizer/settings/settings.hpp"
#include "state/checkpoint.hpp"

// The defaults of the C structs are copied from the settings, so both have the same defaults.

using muonrt::GroupSettings;
using muonrt::OptimizerSettings;
using muonrt::Role;

namespace {

/// Returns a visitor that writes the default of each field that `to` has.
template <class C, class Settings>
auto fills(C& to, const Settings& defaults) {
  return [&](const auto& row) {
    if constexpr (requires { row.c_member(to); }) {
      auto& out = row.c_member(to);
      using Value = std::remove_reference_t<decltype(out)>;
      constexpr bool kText = std::is_pointer_v<Value>;
      if constexpr (!kText && !requires { row.member(defaults).has_value(); }) {
        if (!row.has(muonrt::kZeroIsAbsent)) out = static_cast<Value>(row.member(defaults));
      }
    }
  };
}

void fill_group(muonrt_group_t* group, uint32_t size, Role role) {
  muonrt::fill_sized(group, size, [role](muonrt_group_t& out) {
    const GroupSettings defaults = GroupSettings::defaults(role);
    muonrt::visit_group_fields(fills(out, defaults));
  });
}

/// Fills the options, or one of the structs to which they point.
template <class C>
void fill_options(C* options, uint32_t size) {
  muonrt::fill_sized(options, size, [](C& out) {
    const OptimizerSettings defaults;
    muonrt::visit_option_fields(fills(out, defaults));
  });
}

}  // namespace

extern "C" {

void muonrt_group_init_muon_sized(muonrt_group_t* group, uint32_t size) {
  fill_group(group, size, Role::kMuon);
}

void muonrt_group_init_adamw_sized(muonrt_group_t* group, uint32_t size) {
  fill_group(group, size, Role::kAdamW);
}

void muonrt_part_init_sized(muonrt_part_t* part, uint32_t size) {
  muonrt::fill_sized(part, size, [](muonrt_part_t& out) {
    out.scale_factor = 1.0;
    out.lr_factor = 1.0;
  });
}

void muonrt_qk_clip_init_sized(muonrt_qk_clip_t* clip, uint32_t size) {
  muonrt::fill_sized(clip, size, [](muonrt_qk_clip_t& out) {
    const muonrt::QkClipSettings d;
    out.threshold = d.threshold;
    out.exponent = d.exponent;
  });
}

void muonrt_param_init_sized(muonrt_param_t* param, uint32_t size) {
  muonrt::fill_sized(param, size, [](muonrt_param_t& out) {
    out.dtype = MUONRT_DTYPE_F32;
    out.owner = -1;
    out.lr_factor = 1.0;
  });
}

void muonrt_optimizer_options_init_sized(muonrt_optimizer_options_t* options, uint32_t size) {
  fill_options(options, size);
}

void muonrt_tuning_options_init_sized(muonrt_tuning_options_t* options, uint32_t size) {
  fill_options(options, size);
}

void muonrt_debug_options_init_sized(muonrt_debug_options_t* options, uint32_t size) {
  fill_options(options, size);
}

void muonrt_allocator_init_sized(muonrt_allocator_t* allocator, uint32_t size) {
  muonrt::fill_sized(allocator, size);
}

void muonrt_distributed_config_init_sized(muonrt_distributed_config_t* config, uint32_t size) {
  muonrt::fill_sized(config, size, [](muonrt_distributed_config_t& out) {
    out.async_parallelism = 1;
    out.prefetch_count = 1;
  });
}

void muonrt_step_args_init_sized(muonrt_step_args_t* args, uint32_t size) {
  muonrt::fill_sized(args, size, [](muonrt_step_args_t& out) {
    out.lr = std::numeric_limits<double>::quiet_NaN();
    out.grad_scale_inv = 1.0;
  });
}

void muonrt_step_report_init_sized(muonrt_step_report_t* report, uint32_t size) {
  muonrt::fill_sized(report, size, [](muonrt_step_report_t& out) {
    out.nonfinite_rank = -1;
    out.nonfinite_param = -1;
    out.large_update_param = -1;
  });
}

void muonrt_memory_init_sized(muonrt_memory_t* memory, uint32_t size) {
  muonrt::fill_sized(memory, size);
}

void muonrt_counters_init_sized(muonrt_counters_t* counters, uint32_t size) {
  muonrt::fill_sized(counters, size);
}

void muonrt_plan_summary_init_sized(muonrt_plan_summary_t* summary, uint32_t size) {
  muonrt::fill_sized(summary, size);
}

void muonrt_plan_rank_init_sized(muonrt_plan_rank_t* rank, uint32_t size) {
  muonrt::fill_sized(rank, size);
}

void muonrt_plan_time_init_sized(muonrt_plan_time_t* time, uint32_t size) {
  muonrt::fill_sized(time, size);
}

void muonrt_state_shard_init_sized(muonrt_state_shard_t* shard, uint32_t size) {
  muonrt::fill_sized(shard, size);
}

void muonrt_save_options_init_sized(muonrt_save_options_t* options, uint32_t size) {
  muonrt::fill_sized(options, size,
                     [](muonrt_save_options_t& out) { out.keep = muonrt::SaveSettings().keep; });
}

void muonrt_checkpoint_info_init_sized(muonrt_checkpoint_info_t* info, uint32_t size) {
  muonrt::fill_sized(info, size);
}

void muonrt_checkpoint_tensor_init_sized(muonrt_checkpoint_tensor_t* tensor, uint32_t size) {
  muonrt::fill_sized(tensor, size);
}

void muonrt_load_options_init_sized(muonrt_load_options_t* options, uint32_t size) {
  muonrt::fill_sized(options, size);
}

}  // extern "C"
