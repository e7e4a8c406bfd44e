#pragma once

#include <cstdint>

#include "train/config.hpp"

namespace muonrt::train {

/// Writes the initial values of parameter `index` to `out`. Each value depends only on config,
/// seed, index and element, and is computed with integers up to one rounding, so it is bitwise
/// identical on every machine.
///
/// Gains are 1. Token and position embeddings have standard deviation 0.1 (as large as what a
/// layer adds; smaller or unequal ones learned more slowly), the head 0.02, matrices
/// 0.02 sqrt(768 / in) (GPT-2's, carried to other widths); the two matrices of a layer that write
/// to the residual stream (wo, w_down) are divided by sqrt(2 layers).
void init_param(const Config& config, uint64_t seed, int64_t index, float* out);

}  // namespace muonrt::train
