#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "state/copy/block_exchange.hpp"
#include "state/state_shards.hpp"

namespace muonrt {

/// A shard of `from` on one of the ranks.
struct Source {
  int32_t rank;
  int64_t shard;  // index of the shard on that rank
  Extent extent;
};

/// A request for consecutive elements of a shard of `from`.
struct Request {
  int64_t shard, first, count;
};

/// A request, and the positions of the requested elements on this rank.
struct Part {
  int32_t rank;
  Request request;
  size_t to;  // index of the shard
  int64_t to_first;
};

/// Performs one rank's part of the copy. Each rank has a list of all ranks' shards of `from` with
/// their extents, and chooses a source for each element of its own shards. In each round, it
/// requests a limited number of elements from other ranks. The copy is complete when no rank has
/// requests left.
class Copier {
 public:
  /// @param from  Null if this rank does not have the optimizer.
  Copier(Optimizer& to, Optimizer* from, BlockExchange& exchange);

  /// Finds the shards of this rank.
  /// Errors: INVALID_STATE if loading would reject their values; INVALID_ARGUMENT if shards of `to`
  /// and `from` overlap.
  /// @param index  For each parameter of `to`, its index in `from`.
  void prepare(std::vector<int64_t> index);
  /// Sends the list of this rank's shards to all ranks. Collective.
  void share_extents();
  /// Checks that each element that this rank needs exists on some rank. Errors: INVALID_ARGUMENT.
  void require_elements() const;
  /// Copies all elements. Collective.
  void copy();
  /// Returns the bytes of the shards of `to` on this rank.
  int64_t bytes() const;

 private:
  void read(const StateShard& shard, int64_t first, int64_t count, std::vector<unsigned char>& out);
  std::vector<unsigned char> elements_of(const std::vector<Request>& requests);
  void place(const std::vector<Part>& parts, const Blocks& blocks);
  void assign(size_t to, int64_t first, int64_t count, std::vector<Part>& parts) const;

  Optimizer& to_;
  Optimizer* from_;
  BlockExchange& exchange_;
  const size_t world_;
  std::vector<int64_t> index_;
  std::vector<StateShard> shards_, targets_;  // shards of `from` and of `to`
  std::optional<DeviceCopy> read_, write_;
  // The shards of all ranks, ordered by rank. The key is the parameter's index in `from`, and the
  // kind.
  std::map<std::pair<int64_t, int32_t>, std::vector<Source>> sources_;
};

}  // namespace muonrt
