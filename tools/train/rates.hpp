#pragma once

namespace muonrt::train {

/// Peak learning rates of the two optimizers.
struct Rates {
  double muon, adamw;
};

/// The best of a sweep over both at the default preset, batch and number of steps; its results are
/// in sweep.csv beside this file, made by tools/sweep.
constexpr Rates kBestRates{0.01, 0.005};

}  // namespace muonrt::train
