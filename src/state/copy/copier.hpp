#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "state/copy/block_exchange.hpp"
#include "state/state_shards.hpp"

namespace muonrt {

/// A shard of `from` on some rank.
struct Source {
  int32_t rank;
  int64_t shard;  // its index on that rank
  Extent extent;
};

/// Consecutive elements of a shard of `from`, as they are requested.
struct Request {
  int64_t shard, first, count;
};

/// A request, and the positions of its elements on this rank.
struct Part {
  int32_t rank;
  Request request;
  size_t to;  // index of the shard
  int64_t to_first;
};

/// One rank's part of the copy. Every rank pulls the elements of its shards: it knows the extents
/// of all shards of `from` on all ranks, chooses a rank for each of its elements, and requests a
/// bounded number of elements in each round, until no rank has requests any more.
class Copier {
 public:
  /// @param from  null: this rank has none.
  Copier(Optimizer& to, Optimizer* from, BlockExchange& exchange);

  /// Finds the shards of this rank. Errors: INVALID_STATE if a load would reject their values;
  /// INVALID_ARGUMENT if shards of `to` and `from` overlap.
  /// @param index  of the parameters of `to` in `from`.
  void prepare(std::vector<int64_t> index);
  /// Sends the list of this rank's shards to all ranks. Collective.
  void share_extents();
  /// Errors: INVALID_ARGUMENT if no rank has an element of this rank's shards.
  void require_elements() const;
  /// Copies all elements. Collective.
  void copy();
  /// The bytes of the shards of `to` on this rank.
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
  std::vector<StateShard> shards_, targets_;  // of `from`; of `to`
  std::optional<DeviceCopy> read_, write_;
  // By index of the parameter in `from` and kind: the shards of all ranks, by rank.
  std::map<std::pair<int64_t, int32_t>, std::vector<Source>> sources_;
};

}  // namespace muonrt
