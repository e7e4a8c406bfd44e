#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muonrt {

/// An array of distinct global ranks with named dims. The position of a rank is its row-major index
/// in the array, with the last dim fastest. The array may be in any order and need not contain all
/// ranks, so coordinates are looked up and never computed from the rank. Immutable.
class Mesh {
 public:
  static constexpr int64_t kMaxRanks = int64_t{1} << 24;

  /// One rank, no dims.
  Mesh() : Mesh(std::vector<int64_t>{}) {}

  /// @param names  one per dim, distinct; empty: "d0", "d1", ...
  /// @param ranks  row-major; empty: 0, 1, 2, ...
  /// Errors: INVALID_ARGUMENT for a size < 1, more than kMaxRanks ranks, a wrong number of names or
  /// ranks, a name or rank that occurs twice, an empty name, a negative rank.
  explicit Mesh(std::vector<int64_t> shape, std::vector<std::string> names = {},
                std::vector<int32_t> ranks = {});

  const std::vector<int64_t>& shape() const { return shape_; }
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<int32_t>& ranks() const { return ranks_and_hash().ranks; }
  int dims() const { return static_cast<int>(shape_.size()); }
  int64_t size() const { return size_; }
  int32_t largest_rank() const {
    return by_rank_.empty() ? static_cast<int32_t>(size()) - 1 : by_rank_.back().first;
  }
  /// Returns true if the constructor would make this mesh from these arguments.
  bool is_made_of(const std::vector<int64_t>& shape, const std::vector<std::string>& names,
                  const std::vector<int32_t>& ranks) const;

  /// Returns the position of `rank`, or -1 if it is not in the mesh.
  int64_t position_of(int rank) const;
  /// Returns the coordinates of `rank`, or nullopt if it is not in the mesh.
  std::optional<std::vector<int64_t>> coords(int rank) const;
  /// Errors: INVALID_ARGUMENT if a coordinate is out of range.
  int rank_at(const std::vector<int64_t>& coords) const;
  /// Errors: INVALID_ARGUMENT for an unknown name; the message lists the known ones.
  int dim_of(std::string_view name) const;

  int64_t coord(int64_t position, int dim) const {
    return position / strides_[static_cast<size_t>(dim)] % shape_[static_cast<size_t>(dim)];
  }
  /// Returns the distance of two positions that are neighbors along `dim`.
  int64_t stride(int dim) const { return strides_[static_cast<size_t>(dim)]; }
  /// Returns the product of the sizes of `dims`.
  int64_t count_over(const std::vector<int>& dims) const;
  /// Combines the coordinates of the position on `dims` row-major, in the given order.
  int64_t index_over(const std::vector<int>& dims, int64_t position) const;
  /// Returns the distance of shard `shard` over `dims` from a position with coordinates 0 on
  /// `dims`.
  int64_t offset_over(const std::vector<int>& dims, int64_t shard) const;

  /// Returns text such as "dp=3, tp=2", or "one rank" if there are no dims.
  std::string describe() const;
  /// Hash of the ranks and of the sizes above 1. Names are not included.
  uint64_t hash() const { return ranks_and_hash().hash; }
  /// True if shape and ranks are equal.
  friend bool operator==(const Mesh& a, const Mesh& b) {
    return a.shape_ == b.shape_ &&
           ((a.by_rank_.empty() && b.by_rank_.empty()) || a.ranks() == b.ranks());
  }

 private:
  /// Computed when they are first needed. A tensor's placements follow from names and sizes, and a
  /// mesh of many ranks may be constructed for each tensor.
  struct RanksAndHash {
    std::once_flag once;
    std::vector<int32_t> ranks;
    uint64_t hash = 0;
  };
  const RanksAndHash& ranks_and_hash() const;

  std::vector<int64_t> shape_, strides_;
  std::vector<std::string> names_;
  int64_t size_ = 1;
  std::vector<std::pair<int32_t, int32_t>> by_rank_;  // (rank, position) ascending; empty: iota
  std::shared_ptr<RanksAndHash> computed_;            // shared by copies
};

}  // namespace muonrt
