#pragma once

#include <cstdint>

#include "train/config.hpp"

namespace muonrt::train {

/// Writes the initial values of parameter `index` to `out`. Each value depends only on config,
/// seed, index and element. The computation uses integers and a single rounding, so the values are
/// bitwise identical on every machine.
///
/// Gains are 1. Token and position embeddings have a standard deviation of 0.1, like a layer's
/// output; with smaller or unequal values the model learned more slowly. The head has a standard
/// deviation of 0.02. Matrices have 0.02 sqrt(768 / in), which is GPT-2's value adapted to other
/// widths. The two matrices of a layer that write to the residual stream (wo, w_down) are also
/// divided by sqrt(2 * number of layers).
void init_param(const Config& config, uint64_t seed, int64_t index, float* out);

}  // namespace muonrt::train
