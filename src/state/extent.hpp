#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "layout/layout.hpp"

namespace muonrt {

/// So many elements that lie one after the other both in the whole tensor, row-major, and in the
/// extent.
struct Stretch {
  int64_t element, local, count;
};

/// Which elements of a tensor lie in a buffer, in ascending order: of the product of index lists,
/// one for each dimension, those of row-major number [begin, end). A local shard, a flat range, a
/// slice, a whole matrix or part of one, and lines of NorMuon all are that.
struct Extent {
  std::vector<int64_t> shape;  // of the tensor, or of a view of it: neighbouring dims as one
  std::vector<Runs> runs;
  int64_t begin = 0, end = 0;

  int64_t numel() const { return end - begin; }
  /// Elements of the whole product.
  int64_t product() const;
  /// Elements [first, last) of this extent.
  Extent part(int64_t first, int64_t last) const;
  /// Those of them that are elements [low, high) of the whole tensor.
  Extent between(int64_t low, int64_t high) const;
  /// The element of the whole tensor at a place of this extent.
  int64_t element_at(int64_t place) const;
  /// Ascending by element and by place. Takes time for what is there, wherever it begins.
  std::vector<Stretch> stretches() const;
  friend bool operator==(const Extent&, const Extent&) = default;

 private:
  /// Elements of the whole product before element number `element` of the tensor.
  int64_t count_before(int64_t element) const;
};

/// All of a tensor of so many elements, as one dimension.
Extent whole_extent(int64_t numel);

/// What `rank` holds of a tensor laid out so.
Extent local_extent(const Layout& layout, int rank);

/// A common part of two extents of one tensor: element `first` of `a` on is `second` of `b` on.
struct Overlap {
  int64_t element, first, second, count;
};
/// Ascending.
std::vector<Overlap> overlaps(const Extent& a, const Extent& b);

/// What is wrong with one from outside; null where the lists are ascending and inside the shape,
/// whose product is `numel`, and begin and end inside their product.
const char* problem_of(const Extent& extent, int64_t numel);

}  // namespace muonrt
