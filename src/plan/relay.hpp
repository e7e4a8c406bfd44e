#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "plan/owners/holder_table.hpp"
#include "plan/problem.hpp"

namespace muonrt {

// A return in two levels limits the number of peers of an owner. Consecutive replicas of a layout
// form blocks. In each block, an owner sends to the holders in one replica; in its own block, this
// is its own replica. Each of these holders forwards everything that it has received to the ranks
// in its block that hold the same shard. If there is only one block, the owner therefore sends only
// to its own replica.

/// Returns the replica to which an owner in `owner_replica` sends directly for the block of
/// `replica`.
inline int32_t head_replica(int32_t replica, int32_t owner_replica, int32_t block,
                            int32_t replicas) {
  const int32_t first = replica / block * block;
  return first + owner_replica % block % std::min(block, replicas - first);
}

/// Returns the number of peers of an owner that sends directly to the holders in all replicas.
/// @param shares       Number of holders in each replica.
/// @param owner_holds  True if every owner is one of the holders.
inline int64_t direct_peers(int64_t shares, int64_t replicas, bool owner_holds) {
  return shares * replicas - (owner_holds ? 1 : 0);
}

/// Returns, in ascending order, the ranks to which `rank` forwards everything that owners have sent
/// to it. These ranks hold the same shard in the other replicas of its block.
std::vector<int32_t> forwards_to(const Layout& layout, int32_t rank, int32_t block);

/// Returns the number of replicas in a block, or 0 if owners should send to all holders directly.
/// Owners send directly if the number of holders is within `max_peers`, or if two levels would not
/// reduce the number of peers. Otherwise a single block contains all replicas if this gives both
/// levels at most `max_peers` peers. If not, the number of replicas in a block minimizes the larger
/// number of peers of the two levels.
int32_t relay_block(int64_t shares, int64_t replicas, bool owner_holds, int64_t max_peers);

/// Computes relay_block() for the matrices of a problem, and determines which matrices have the
/// same peers.
class RelayChooser {
 public:
  RelayChooser(const std::vector<ParamSpec>& params, const PlanOptions& options,
               const HolderTable& holders);

  /// Returns relay_block() for a matrix, or for an AdamW parameter with partial gradients. For an
  /// AdamW parameter, `index` is -1.
  int32_t block(int32_t param, int64_t index);
  /// Returns the mesh and the replicating dims of a parameter as a list. If two parameters have
  /// equal lists, every rank forwards the data of both to the same ranks.
  const std::vector<int64_t>& over(int32_t param);

 private:
  /// Returns relay_block() and stores the result, because the time to compute it grows with the
  /// number of replicas.
  int32_t block_of(int64_t shares, int64_t replicas, bool owner_holds);

  const std::vector<ParamSpec>& params_;
  int64_t max_peers_;
  bool never_;
  const HolderTable& holders_;
  BlockTable blocks_;
  std::map<std::tuple<int64_t, int64_t, bool>, int32_t> known_;  // keys: arguments of block_of()
  std::vector<int32_t> block_of_kind_;                           // -1 if not computed yet
  std::vector<std::vector<int64_t>> over_;  // indexed by layout; empty if not computed yet
};

}  // namespace muonrt
