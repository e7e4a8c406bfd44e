#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/owners/holder_table.hpp"
#include "plan/problem.hpp"

namespace muonrt {

// A return in two levels. The replicas of a layout are taken in blocks of consecutive numbers. An
// owner returns to the holders in one replica of each block, in its own block to its own; each of
// those forwards all that it received to the equal holders of the other replicas of its block. With
// one block the owner returns to its own replica alone.

/// The replica of `replica`'s block to which an owner in `owner_replica` returns.
inline int32_t head_replica(int32_t replica, int32_t owner_replica, int32_t block,
                            int32_t replicas) {
  const int32_t first = replica / block * block;
  return first + owner_replica % block % std::min(block, replicas - first);
}

/// Peers of an owner that returns to the holders of all replicas, `shares` of them in each.
/// @param owner_holds  whether every owner is one of them.
inline int64_t direct_peers(int64_t shares, int64_t replicas, bool owner_holds) {
  return shares * replicas - (owner_holds ? 1 : 0);
}

/// Ranks to which `rank` forwards all that owners sent to it: its equal holders in the other
/// replicas of its block, ascending.
std::vector<int32_t> forwards_to(const Layout& layout, int32_t rank, int32_t block);

/// Replicas of a block: all of them where both levels then keep to `max_peers`, else the number
/// for which the level with more peers has the fewest. 0 where owners return to all by themselves:
/// within the bound, or where two levels would have no fewer peers.
int32_t relay_block(int64_t shares, int64_t replicas, bool owner_holds, int64_t max_peers);

/// relay_block for the matrices of a problem, and which of them have the same peers.
class RelayChooser {
 public:
  RelayChooser(const std::vector<ParamSpec>& params, const PlanOptions& options,
               const HolderTable& holders);

  /// Block of a matrix, or of an AdamW parameter whose gradients are addends (index -1).
  int32_t block(int32_t param, int64_t index);
  /// Equal for parameters where a rank has the same equal holders: mesh and replicating dims.
  const std::vector<int64_t>& over(int32_t param);

 private:
  const std::vector<ParamSpec>& params_;
  int64_t max_peers_;
  bool never_;
  const HolderTable& holders_;
  BlockTable blocks_;
  std::vector<int32_t> block_of_kind_;      // -1: not known yet
  std::vector<std::vector<int64_t>> over_;  // by layout; empty: not known yet
};

}  // namespace muonrt
