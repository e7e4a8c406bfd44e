#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "layout/layout.hpp"

namespace muonrt {

/// `count` elements that are consecutive both in the whole tensor (row-major) and in the extent.
struct Stretch {
  int64_t element, local, count;
};

/// The elements of a tensor that a buffer holds, in ascending order: elements [begin, end) of the
/// row-major product of one index list for each dimension. This describes a local shard, a flat
/// range, a slice, a whole matrix or a part of it, and the neurons of NorMuon.
struct Extent {
  std::vector<int64_t> shape;  // of the tensor, or with neighboring dimensions merged
  std::vector<Runs> runs;
  int64_t begin = 0, end = 0;

  int64_t numel() const { return end - begin; }
  /// Number of elements of the whole product.
  int64_t product() const;
  /// Returns elements [first, last) of this extent.
  Extent part(int64_t first, int64_t last) const;
  /// Returns the elements of this extent that are elements [low, high) of the whole tensor.
  Extent between(int64_t low, int64_t high) const;
  /// Returns the index in the whole tensor of element `local` of this extent.
  int64_t element_at(int64_t local) const;
  /// Returns the stretches in ascending order. The time depends on the size of the extent, not on
  /// where it begins.
  std::vector<Stretch> stretches() const;
  friend bool operator==(const Extent&, const Extent&) = default;

 private:
  /// Number of elements of the whole product before element `element` of the tensor.
  int64_t count_before(int64_t element) const;
};

/// Returns the extent of a whole tensor of `numel` elements, as one dimension.
Extent whole_extent(int64_t numel);

/// Returns the extent of the elements that `rank` holds of a tensor with this layout.
Extent local_extent(const Layout& layout, int rank);

/// Consecutive elements that two extents of one tensor share: they begin at local element `first`
/// of `a` and `second` of `b`.
struct Overlap {
  int64_t element, first, second, count;
};
/// Returns the shared elements in ascending order.
std::vector<Overlap> overlaps(const Extent& a, const Extent& b);

/// Checks an extent from a file. Returns null if the lists are ascending and inside the shape, the
/// product of the shape is `numel`, and begin and end are inside the product of the lists.
/// Otherwise returns the problem.
const char* problem_of(const Extent& extent, int64_t numel);

}  // namespace muonrt
