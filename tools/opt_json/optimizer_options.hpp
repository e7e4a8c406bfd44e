#pragma once

#include "muonrt/muonrt.hpp"

namespace muonrt::tool {

/// The options of muonrt_optimizer_create() together with the structs that they point to.
struct OptimizerOptions {
  muonrt_optimizer_options_t general = options();
  muonrt_tuning_options_t tuning = tuning_options();
  muonrt_debug_options_t debug = debug_options();

  /// Returns `general` with pointers to `tuning` and `debug`, valid as long as this object.
  muonrt_optimizer_options_t linked() const {
    muonrt_optimizer_options_t out = general;
    out.tuning = &tuning;
    out.debug = &debug;
    return out;
  }
};

}  // namespace muonrt::tool
