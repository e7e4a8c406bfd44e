#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/hash.hpp"
#include "plan/messages.hpp"

namespace muonrt {

/// Messages of equal size between an owner and each of the ranks [first, first + count).
struct RankRange {
  int32_t first, count;
  int64_t numel;  // number of elements of each message
  /// Hash of the first message. Messages with the same shards of the same matrices have equal
  /// hashes.
  uint64_t content;
};

/// Computes the messages between the owners of a chunk and their peers.
class OwnerMessages {
 public:
  /// All arguments must outlive the object.
  OwnerMessages(const Plan& plan, BlockTable& blocks, const ChunkSpec& chunk)
      : plan_(plan), blocks_(blocks), chunk_(chunk) {}

  /// Returns the messages of one owner in the chunk, except those that other ranks forward. `ids`
  /// must list all matrices that it owns there. If all matrices have the same holders, the time
  /// grows with the number of runs of equal shards, and not with the number of shards.
  std::vector<RankRange> of(std::span<const int32_t> ids, Exchange exchange);
  /// group_of() returns the ranks that send or receive a matrix in an exchange, and runs_of() the
  /// number of elements of each shard.
  const HolderGroup& group_of(const Matrix& m, Exchange exchange) const;
  const ShardRuns& runs_of(const Matrix& m, Exchange exchange);

 private:
  const Matrix& matrix(int32_t id) const { return plan_.matrices()[static_cast<size_t>(id)]; }
  std::vector<int32_t> replicas_of(const Matrix& m, Exchange exchange) const;
  ShardRuns sum_of_runs(std::span<const int32_t> ids, Exchange exchange);
  std::vector<RankRange> of_one_group(std::span<const int32_t> ids, Exchange exchange,
                                      const HolderGroup& group);
  std::vector<RankRange> of_groups(std::span<const int32_t> ids, Exchange exchange);

  struct Sum {
    int64_t numel = 0;
    Hash content;
  };

  const Plan& plan_;
  BlockTable& blocks_;
  const ChunkSpec& chunk_;
  std::vector<Sum> by_rank_;
};

}  // namespace muonrt
