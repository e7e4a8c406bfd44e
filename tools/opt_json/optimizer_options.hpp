#pragma once

#include "muonrt/muonrt.hpp"

namespace muonrt::tool {

/// The options of muonrt_optimizer_create(), and the structs that they point to.
struct OptimizerOptions {
  muonrt_optimizer_options_t general = options();
  muonrt_tuning_options_t tuning = tuning_options();
  muonrt_debug_options_t debug = debug_options();
  muonrt_distributed_config_t overlap = distributed_config();
  bool has_overlap = false;  // `overlap` replaces the window in `tuning`

  /// Returns `general` with pointers to the other structs. The pointers are valid while this object
  /// exists.
  muonrt_optimizer_options_t linked() {
    muonrt_optimizer_options_t out = general;
    if (has_overlap) tuning.distributed = &overlap;
    out.tuning = &tuning;
    out.debug = &debug;
    return out;
  }
};

}  // namespace muonrt::tool
