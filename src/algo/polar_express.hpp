#pragma once

#include <vector>

#include "algo/coefficients.hpp"

namespace muonrt {

/// Returns the composition of `steps` odd quintics that is closest to 1 on [lower_bound, 1]. It is
/// found greedily in long double. `inner_safety` divides every polynomial except the last inside
/// the loop (1: none). Source: Amsel et al. 2025, The Polar Express (arXiv 2505.16932), Algorithm
/// 1; cushion and safety as in its reference implementation.
std::vector<Coefficients> polar_express(int steps, double lower_bound, double cushion,
                                        double inner_safety);

}  // namespace muonrt
