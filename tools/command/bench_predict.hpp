#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.hpp"

namespace muonrt::tool {

// What to expect of one H200, bf16, random data: rates that were measured (cuda/MEASUREMENTS.md),
// interpolated between sizes; job lists; what tiles cost.

/// A product of a Newton-Schulz step: `count` results m x n, sums of k terms; k = 0: the identity
/// added to them.
struct PredictedProduct {
  int64_t m = 0, n = 0, k = 0, count = 1;
  bool symmetric = false, with_d = false;
};

/// Blocks of a grid that fills all SMs but the reserved ones.
int64_t predicted_blocks(int reserved_sms);

/// Milliseconds by a provider of `muonrt bench`; nothing where none was predicted.
/// @param blocks  of the symmetric kernels' grids.
std::optional<double> predicted_ms(const std::string& provider, const PredictedProduct& product,
                                   int64_t blocks);

/// Of iterations that go in lockstep (src/algo/lockstep): by `sm90` all symmetric products of a
/// turn in launches of up to six shapes, by others the sum.
std::optional<double> predicted_lockstep_ms(
    const std::string& provider, const std::vector<std::vector<PredictedProduct>>& iterations,
    int64_t blocks);
/// Of the normalization before them, which comes from memory and goes there.
double predicted_normalization_ms(int64_t elements, DType input, DType iterate);

/// The products of Newton-Schulz on `count` matrices m x n, m <= n.
/// @param restarts  steps before which the Gram form rebuilds X; null: the standard form.
std::vector<PredictedProduct> predicted_products(int64_t m, int64_t n, int64_t count, int steps,
                                                 const std::vector<int>* restarts);
/// Their sum.
std::optional<double> predicted_ms(const std::string& provider,
                                   const std::vector<PredictedProduct>& products, int64_t blocks);

}  // namespace muonrt::tool
