#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "algo/newton_schulz.hpp"
#include "backend/matrix_rules.hpp"
#include "plan/plan.hpp"

namespace muonrt {

/// Neighbours among what an owner has of a slot that are orthogonalized as one batch: equal shapes,
/// short side first, with equal methods.
struct BatchShape {
  int32_t first = 0, count = 0;  // of the owner's matrices
  int32_t group = 0;
  Method method;
  int64_t m = 0, n = 0, ld = 0;  // m <= n; of the gathered matrices, transport dtype
  int32_t batch_group = 0;       // those of one team run in lockstep, side by side in the scratch
};

/// How an owner's matrices of a slot, in the slot's order, are orthogonalized together.
std::vector<BatchShape> batch_shapes(const Plan& plan, std::span<const int32_t> matrices,
                                     const MatrixRules& rules);

/// Bytes of scratch of a batch, one part behind the other.
struct BatchBytes {
  int64_t raw = 0;         // what was gathered
  int64_t workspace = 0;   // newton_schulz_workspace
  int64_t statistics = 0;  // of Lanczos, where steps may measure
  int64_t total() const { return raw + workspace + statistics; }
};
BatchBytes batch_bytes(const BatchShape& batch, const NewtonSchulz& settings, DType transport,
                       const MatrixRules& rules, bool health);

/// Of the team that needs most.
/// @param methods  of each group
int64_t largest_batch_group_bytes(std::span<const BatchShape> batches,
                                  std::span<const NewtonSchulz> methods, DType transport,
                                  const MatrixRules& rules, bool health);

/// Bytes of scratch that each rank takes for products: of the team that needs most. Beside it, but
/// not in it, a backend has what its library for products asks for.
/// @param methods  of each group
/// @param health   whether steps may measure
std::vector<int64_t> scratch_bytes(const Plan& plan, std::span<const NewtonSchulz> methods,
                                   const MatrixRules& rules, bool health);

}  // namespace muonrt
