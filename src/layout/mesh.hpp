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

/// An array of distinct global ranks whose dims have names. The position of a rank is its row-major
/// index in the array, so the last dim varies fastest. The array may contain the ranks in any
/// order, and need not contain all of them. Therefore, look up coordinates and never compute them
/// from the rank. Immutable.
class Mesh {
 public:
  static constexpr int64_t kMaxRanks = int64_t{1} << 24;

  /// Creates a mesh of one rank without dims.
  Mesh() : Mesh(std::vector<int64_t>{}) {}

  /// @param names  One distinct name for each dim. If empty, the names are "d0", "d1", ...
  /// @param ranks  The ranks in row-major order. If empty, they are 0, 1, 2, ...
  /// Errors: INVALID_ARGUMENT if a size is < 1, there are more than kMaxRanks ranks, the number of
  /// names or ranks is wrong, a name or rank occurs twice, a name is empty, or a rank is negative.
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
  /// Returns true if the constructor would make an equal mesh from these arguments.
  bool is_made_of(const std::vector<int64_t>& shape, const std::vector<std::string>& names,
                  const std::vector<int32_t>& ranks) const;

  /// Returns the position of `rank`, or -1 if it is not in the mesh.
  int64_t position_of(int rank) const;
  /// Returns the coordinates of `rank`, or nullopt if it is not in the mesh.
  std::optional<std::vector<int64_t>> coords(int rank) const;
  /// Returns the rank at these coordinates. Errors: INVALID_ARGUMENT if a coordinate is out of
  /// range.
  int rank_at(const std::vector<int64_t>& coords) const;
  /// Returns the index of the dim with this name. Errors: INVALID_ARGUMENT if the name is unknown;
  /// the message lists the known names.
  int dim_of(std::string_view name) const;

  int64_t coord(int64_t position, int dim) const {
    return position / strides_[static_cast<size_t>(dim)] % shape_[static_cast<size_t>(dim)];
  }
  /// Returns the difference between the positions of two neighbors along `dim`.
  int64_t stride(int dim) const { return strides_[static_cast<size_t>(dim)]; }
  /// Returns the product of the sizes of `dims`.
  int64_t count_over(const std::vector<int>& dims) const;
  /// Combines the coordinates of a position on `dims` into one index, row-major in the given order.
  int64_t index_over(const std::vector<int>& dims, int64_t position) const;
  /// Returns the position of shard `shard` over `dims` minus the position of shard 0.
  int64_t offset_over(const std::vector<int>& dims, int64_t shard) const;

  /// Returns text such as "dp=3, tp=2", or "one rank" if there are no dims.
  std::string describe() const;
  /// Returns a hash of the ranks and of the sizes above 1. Names do not affect it.
  uint64_t hash() const { return ranks_and_hash().hash; }
  /// Returns true if the shapes and the ranks are equal.
  friend bool operator==(const Mesh& a, const Mesh& b) {
    return a.shape_ == b.shape_ &&
           ((a.by_rank_.empty() && b.by_rank_.empty()) || a.ranks() == b.ranks());
  }

 private:
  /// Values that are computed when they are first needed. Many meshes never need them: a caller may
  /// construct a large mesh for each tensor, and the placements of a tensor follow from names and
  /// sizes.
  struct RanksAndHash {
    std::once_flag once;
    std::vector<int32_t> ranks;
    uint64_t hash = 0;
  };
  const RanksAndHash& ranks_and_hash() const;

  std::vector<int64_t> shape_, strides_;
  std::vector<std::string> names_;
  int64_t size_ = 1;
  /// Pairs (rank, position) in ascending order; empty if each rank equals its position.
  std::vector<std::pair<int32_t, int32_t>> by_rank_;
  std::shared_ptr<RanksAndHash> computed_;  // shared by all copies
};

}  // namespace muonrt
