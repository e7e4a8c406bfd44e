#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muonrt {

/// The indices [begin, end).
struct Run {
  int64_t begin = 0, end = 0;
  friend bool operator==(const Run&, const Run&) = default;
};

/// A list of indices as ascending, disjoint, nonempty runs; adjacent runs are merged. Every cut
/// keeps the indices in ascending order, so the set of indices also determines their order in the
/// local buffer.
using Runs = std::vector<Run>;

/// Returns the number of indices.
int64_t length(const Runs& list);

/// Returns [0, n) as one run. Returns an empty list if n = 0.
Runs whole(int64_t n);

/// Returns part `index` of the `parts` parts into which a cut divides `list`. The cut divides the
/// list into blocks of `unit` positions (the last block may be shorter), the blocks into
/// `split_factor` groups, and each group into `parts` ranges. The sizes of groups and ranges, in
/// blocks, are rounded up, so the last ones may be shorter or empty. A part consists of range
/// `index` of each group, so it is contiguous if split_factor is 1. The time is linear in the
/// number of runs of `list` and of the result.
/// Errors: INVALID_ARGUMENT if parts, split_factor or unit is < 1, or index is not in [0, parts).
Runs cut(const Runs& list, int64_t parts, int64_t index, int64_t split_factor, int64_t unit);

/// Returns length(cut(...)) for a list of `size` indices, in O(1) time.
int64_t cut_length(int64_t size, int64_t parts, int64_t index, int64_t split_factor, int64_t unit);

/// Identifies the part of a cut that contains a position of the list.
struct CutSpot {
  int64_t part, position;  // index of the part, and position within the part
};

/// Returns the part that contains position `at` of a list of `size` indices, in O(1) time. This
/// function is the inverse of cut().
CutSpot locate_in_cut(int64_t size, int64_t at, int64_t parts, int64_t split_factor, int64_t unit);

/// Returns the indices at positions [begin, end) of the list. Both limits are clamped to its
/// length.
Runs slice(const Runs& list, int64_t begin, int64_t end);

/// Returns the indices that occur in both lists.
Runs intersect(const Runs& a, const Runs& b);

/// Returns the position of `index` in the list, or -1 if the list does not contain it.
int64_t position_of(const Runs& list, int64_t index);

/// Merges the index lists of two adjacent dims into a row-major list: o * inner_size + i for each o
/// in `outer` and each i in `inner`.
Runs flatten(const Runs& outer, const Runs& inner, int64_t inner_size);

/// Returns text such as "[0, 3) [5, 7)", or "-" for an empty list.
std::string to_text(const Runs& list);

}  // namespace muonrt
