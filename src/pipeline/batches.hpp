#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "algo/newton_schulz.hpp"
#include "backend/matrix_rules.hpp"
#include "plan/plan.hpp"

namespace muonrt {

/// A batch: consecutive matrices of an owner in a chunk that can be orthogonalized together because
/// they have the same shape (with the short side first), group and form.
struct BatchShape {
  int32_t first = 0, count = 0;  // range in the list of the owner's matrices
  int32_t group = 0;
  Method method;
  int64_t m = 0, n = 0, ld = 0;  // size of the gathered matrices in the transport dtype; m <= n
  /// Batches of the same batch group run in lockstep and share the scratch memory.
  int32_t batch_group = 0;
};

/// Divides the matrices that an owner has in a chunk into batches and batch groups, without
/// changing their order.
std::vector<BatchShape> batch_shapes(const Plan& plan, std::span<const int32_t> matrices,
                                     const MatrixRules& rules);

/// The bytes of the parts of a batch's scratch memory, in the order of their addresses.
struct BatchBytes {
  int64_t raw = 0;         // the gathered matrices
  int64_t workspace = 0;   // newton_schulz_workspace()
  int64_t statistics = 0;  // for the Lanczos method, if steps may collect statistics
  int64_t total() const { return raw + workspace + statistics; }
};
BatchBytes batch_bytes(const BatchShape& batch, const NewtonSchulz& settings, DType transport,
                       const MatrixRules& rules, bool health);

/// Returns the bytes of scratch memory of the batch group that needs the most.
/// @param methods  One entry for each group.
int64_t largest_batch_group_bytes(std::span<const BatchShape> batches,
                                  std::span<const NewtonSchulz> methods, DType transport,
                                  const MatrixRules& rules, bool health);

/// Returns, for each rank, the bytes of scratch memory that it allocates for products: the bytes
/// that its largest batch group needs. The workspace of a backend's product library is not
/// included.
/// @param methods  One entry for each group.
/// @param health   True if steps may collect statistics.
std::vector<int64_t> scratch_bytes(const Plan& plan, std::span<const NewtonSchulz> methods,
                                   const MatrixRules& rules, bool health);

}  // namespace muonrt
