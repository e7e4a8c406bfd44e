#pragma once

#include <string>

namespace muonrt::train {

/// Peak learning rates of a preset, for its default number of steps and batch.
struct Rates {
  double muon, adamw;
};

/// The best of a sweep over both optimizers; its results are in sweep.csv beside this file, made by
/// tools/sweep. Presets that were not swept take those of `small`.
Rates best_rates(const std::string& preset);

}  // namespace muonrt::train
