#pragma once

#include <vector>

#include "algo/coefficients.hpp"

namespace muonrt {

/// Returns `steps` odd quintics whose composition is close to 1 on [lower_bound, 1]. Each quintic
/// is computed in long double and is optimal for the range of values that the previous quintics
/// produce. While the list is generated, every polynomial except the last is divided by
/// `inner_safety` (1 means no change). Source: Amsel et al. 2025, The Polar Express (arXiv
/// 2505.16932), Algorithm 1; cushion and safety are defined as in its reference implementation.
std::vector<Coefficients> polar_express(int steps, double lower_bound, double cushion,
                                        double inner_safety);

}  // namespace muonrt
