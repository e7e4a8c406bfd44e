#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "layout/layout.hpp"

namespace muonrt {

/// A range of `count` elements that are consecutive both in the whole row-major tensor and in an
/// extent.
struct Stretch {
  int64_t element, local, count;
};

/// The elements of a tensor that a buffer contains, in ascending order. Each dimension has a list
/// of indices, and the extent consists of elements [begin, end) of the row-major product of these
/// lists. An extent can describe a local shard, a flat range, a slice, a whole matrix or a part of
/// one, and the neurons of NorMuon.
struct Extent {
  std::vector<int64_t> shape;  // shape of the tensor; neighboring dimensions may be merged
  std::vector<Runs> runs;
  int64_t begin = 0, end = 0;

  int64_t numel() const { return end - begin; }
  /// Returns the number of elements of the whole product.
  int64_t product() const;
  /// Returns the extent that consists of elements [first, last) of this extent.
  Extent part(int64_t first, int64_t last) const;
  /// Returns the extent of those elements of this extent whose index in the whole tensor is in
  /// [low, high).
  Extent between(int64_t low, int64_t high) const;
  /// Returns the index that element `local` of this extent has in the whole tensor.
  int64_t element_at(int64_t local) const;
  /// Returns the stretches in ascending order. The time depends on the size of the extent, but not
  /// on its position in the tensor.
  std::vector<Stretch> stretches() const;
  friend bool operator==(const Extent&, const Extent&) = default;

 private:
  /// Returns the number of elements of the whole product whose index in the tensor is below
  /// `element`.
  int64_t count_before(int64_t element) const;
};

/// Returns the extent of a whole tensor with `numel` elements, as one dimension.
Extent whole_extent(int64_t numel);

/// Returns the extent of the elements that `rank` holds of a tensor with this layout.
Extent local_extent(const Layout& layout, int rank);

/// Consecutive elements that two extents of a tensor share. They begin at index `first` of extent
/// `a` and at index `second` of extent `b`.
struct Overlap {
  int64_t element, first, second, count;
};
/// Returns the common elements in ascending order.
std::vector<Overlap> overlaps(const Extent& a, const Extent& b);

/// Checks an extent that was read from a file. Returns a description of the problem, or null if the
/// extent is valid. The lists must ascend and be inside the shape. The product of the shape must be
/// `numel`, and `begin` and `end` must be inside the product of the lists.
const char* problem_of(const Extent& extent, int64_t numel);

}  // namespace muonrt
