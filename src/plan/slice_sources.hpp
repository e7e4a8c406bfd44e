#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "layout/blocks.hpp"
#include "plan/problem.hpp"

namespace muonrt {

/// A rectangle of a tensor (as a matrix) on two ranks: in the gradient of one, in the slice of the
/// parameter that the other owns. Offsets and leading dimensions in elements of the local buffers.
struct SharedBlock {
  int64_t rows, cols;
  int64_t grad_offset, grad_ld;
  int64_t param_offset, param_ld;
};

/// Where the gradient of a slice lies, for an AdamW parameter whose gradient has a layout of its
/// own. Not for several threads.
class SliceSources {
 public:
  /// @param spec  has a grad_layout; must outlive this.
  explicit SliceSources(const ParamSpec& spec);

  /// Which replica of the gradient `owner` gathers: its own, or one that depends on its rank.
  int64_t replica_for(int owner) const;
  /// Ranks that hold a replica of the gradient, all addends.
  const std::vector<int>& holders(int64_t replica) const {
    return holders_[static_cast<size_t>(replica)];
  }
  /// What elements [begin, end) of `owner`'s local parameter are in `holder`'s gradient, in an
  /// order that both follow.
  std::vector<SharedBlock> shared(int owner, int64_t begin, int64_t end, int holder);

 private:
  const std::vector<Block>& blocks(const Layout& layout, int rank,
                                   std::map<int64_t, std::vector<Block>>& known);

  Layout param_, grad_;                                       // as matrices
  std::vector<std::vector<int>> holders_;                     // by replica
  std::map<int64_t, std::vector<Block>> of_param_, of_grad_;  // by shard slot
};

}  // namespace muonrt
