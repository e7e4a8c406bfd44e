#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/owners/holder_table.hpp"
#include "plan/problem.hpp"

namespace muonrt {

// A return in two levels. Consecutive replicas of a layout form blocks. An owner returns to the
// holders in one replica of each block; in its own block this is its own replica. Each of these
// holders forwards everything that it received to its equal holders in the other replicas of its
// block. If there is only one block, the owner returns only to its own replica.

/// Returns the replica to which an owner in `owner_replica` returns in the block of `replica`.
inline int32_t head_replica(int32_t replica, int32_t owner_replica, int32_t block,
                            int32_t replicas) {
  const int32_t first = replica / block * block;
  return first + owner_replica % block % std::min(block, replicas - first);
}

/// Returns the number of peers of an owner that returns to the holders of all replicas directly.
/// @param shares       holders in each replica.
/// @param owner_holds  true if every owner is one of the holders.
inline int64_t direct_peers(int64_t shares, int64_t replicas, bool owner_holds) {
  return shares * replicas - (owner_holds ? 1 : 0);
}

/// Returns the ranks to which `rank` forwards everything that owners sent to it: its equal holders
/// in the other replicas of its block, ascending.
std::vector<int32_t> forwards_to(const Layout& layout, int32_t rank, int32_t block);

/// Returns the number of replicas in a block. It is the number of all replicas if both levels then
/// have at most `max_peers` peers, otherwise the number with which the level with more peers has
/// the fewest. Returns 0 if owners return to all holders directly, because they are within the
/// limit or two levels would not have fewer peers.
int32_t relay_block(int64_t shares, int64_t replicas, bool owner_holds, int64_t max_peers);

/// Computes relay_block for the matrices of a problem, and which matrices have the same peers.
class RelayChooser {
 public:
  RelayChooser(const std::vector<ParamSpec>& params, const PlanOptions& options,
               const HolderTable& holders);

  /// Returns the relay_block of a matrix, or of an AdamW parameter with partial gradients
  /// (index -1).
  int32_t block(int32_t param, int64_t index);
  /// Returns mesh and replicating dims. Every rank has the same equal holders in parameters for
  /// which they are equal.
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
