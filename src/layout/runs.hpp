#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muonrt {

/// Indices [begin, end).
struct Run {
  int64_t begin = 0, end = 0;
  friend bool operator==(const Run&, const Run&) = default;
};

/// An index list: ascending, disjoint runs, none empty, neighbours merged. Every cut selects a
/// subsequence in order, so the set determines the local order.
using Runs = std::vector<Run>;

/// Number of indices.
int64_t length(const Runs& list);

/// [0, n) as one run (none for n = 0).
Runs whole(int64_t n);

/// Part `index` of `parts` of a cut of `list`. The list counts as blocks of `unit` positions (the
/// last may be short); the blocks fall into `split_factor` pieces of ceil size, every piece into
/// `parts` chunks of ceil size, and the part is chunk `index` of each piece. split_factor = 1 is
/// the plain chunk. Costs O(runs in + runs out). Errors: INVALID_ARGUMENT if parts, split_factor or
/// unit < 1, or index is not in [0, parts).
Runs cut(const Runs& list, int64_t parts, int64_t index, int64_t split_factor, int64_t unit);

/// length(cut(...)) of a list of `size` indices, in O(1).
int64_t cut_length(int64_t size, int64_t parts, int64_t index, int64_t split_factor, int64_t unit);

/// Where one position of a list goes in a cut.
struct CutSpot {
  int64_t part, position;  // which part, and where in its list
};

/// The inverse of `cut`, in O(1). @param at  position in a list of `size` indices.
CutSpot locate_in_cut(int64_t size, int64_t at, int64_t parts, int64_t split_factor, int64_t unit);

/// Positions [begin, end) of the list; both are clamped to its length.
Runs slice(const Runs& list, int64_t begin, int64_t end);

/// Indices in both lists.
Runs intersect(const Runs& a, const Runs& b);

/// Position of `index` in the list, or -1.
int64_t position_of(const Runs& list, int64_t index);

/// Row-major index list of a pair of dims: o * inner_size + i for o in `outer`, i in `inner`.
Runs flatten(const Runs& outer, const Runs& inner, int64_t inner_size);

/// "[0, 3) [5, 7)", "-" if empty.
std::string to_text(const Runs& list);

}  // namespace muonrt
