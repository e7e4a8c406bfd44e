#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "layout/blocks.hpp"
#include "plan/problem.hpp"

namespace muonrt {

/// A block of a tensor (as a matrix) on two ranks: in the gradient of one rank, and in the slice of
/// the parameter that the other rank owns. Offsets and leading dimensions in elements of the local
/// buffers.
struct SharedBlock {
  int64_t rows, cols;
  int64_t grad_offset, grad_ld;
  int64_t param_offset, param_ld;
};

/// Finds the gradient of a slice of an AdamW parameter whose gradient has a separate layout. Not
/// thread-safe.
class SliceSources {
 public:
  /// @param spec  has a grad_layout; must outlive this.
  explicit SliceSources(const ParamSpec& spec);

  /// Returns the replica of the gradient that `owner` gathers: its own, or one chosen by its rank.
  int64_t replica_for(int owner) const;
  /// Returns the ranks that hold a replica of the gradient, with all partial gradients.
  const std::vector<int>& holders(int64_t replica) const {
    return holders_[static_cast<size_t>(replica)];
  }
  /// Returns the blocks that elements [begin, end) of `owner`'s local parameter share with
  /// `holder`'s gradient, in the same order on both ranks.
  std::vector<SharedBlock> shared(int owner, int64_t begin, int64_t end, int holder);

 private:
  const std::vector<Block>& blocks(const Layout& layout, int rank,
                                   std::map<int64_t, std::vector<Block>>& known);

  Layout param_, grad_;                                       // as matrices
  std::vector<std::vector<int>> holders_;                     // by replica
  std::map<int64_t, std::vector<Block>> of_param_, of_grad_;  // by shard index
};

}  // namespace muonrt
