#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "layout/blocks.hpp"
#include "plan/problem.hpp"

namespace muonrt {

/// A block of elements that are both in the gradient on one rank and in an owner's slice of the
/// parameter on another rank. The tensor is viewed as a matrix. Offsets and leading dimensions are
/// in elements of the local buffers.
struct SharedBlock {
  int64_t rows, cols;
  int64_t grad_offset, grad_ld;
  int64_t param_offset, param_ld;
};

/// Finds the ranks that hold the gradient of a slice. Used for AdamW parameters whose gradient has
/// a separate layout. Not thread-safe.
class SliceSources {
 public:
  /// @param spec  It must have a grad_layout, and must outlive this object.
  explicit SliceSources(const ParamSpec& spec);

  /// Returns the replica of the gradient that `owner` gathers. If the owner holds the gradient,
  /// this is its own replica; otherwise its rank number selects one.
  int64_t replica_for(int owner) const;
  /// Returns the ranks that hold a part of this replica of the gradient. For a partial gradient,
  /// these are the ranks of all its terms.
  const std::vector<int>& holders(int64_t replica) const {
    return holders_[static_cast<size_t>(replica)];
  }
  /// Returns the blocks that are both in elements [begin, end) of `owner`'s local parameter and in
  /// `holder`'s gradient. The order is the same on both ranks.
  std::vector<SharedBlock> shared(int owner, int64_t begin, int64_t end, int holder);

 private:
  const std::vector<Block>& blocks(const Layout& layout, int rank,
                                   std::map<int64_t, std::vector<Block>>& known);

  Layout param_, grad_;                                       // both viewed as matrices
  std::vector<std::vector<int>> holders_;                     // indexed by replica
  std::map<int64_t, std::vector<Block>> of_param_, of_grad_;  // keys are shard indices
};

}  // namespace muonrt
