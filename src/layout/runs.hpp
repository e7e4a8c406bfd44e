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

/// An index list: ascending disjoint runs, not empty, adjacent runs merged. Every cut keeps the
/// order, so the set of indices determines their order in the local buffer.
using Runs = std::vector<Run>;

/// Returns the number of indices.
int64_t length(const Runs& list);

/// Returns [0, n) as one run, or no run if n = 0.
Runs whole(int64_t n);

/// Returns part `index` of `parts` of a cut of `list`. The list is divided into blocks of `unit`
/// positions, the last of which may be shorter. The blocks are divided into `split_factor` groups
/// of ceil size, and each group into `parts` ranges of ceil size. The part consists of range
/// `index` of each group; with split_factor = 1 it is contiguous. Costs O(runs in + runs out).
/// Errors: INVALID_ARGUMENT if parts, split_factor or unit < 1, or index is not in [0, parts).
Runs cut(const Runs& list, int64_t parts, int64_t index, int64_t split_factor, int64_t unit);

/// Returns length(cut(...)) for a list of `size` indices, in O(1).
int64_t cut_length(int64_t size, int64_t parts, int64_t index, int64_t split_factor, int64_t unit);

/// The location of one position of a list in a cut.
struct CutSpot {
  int64_t part, position;  // the part, and the position in its list
};

/// The inverse of `cut`, in O(1). @param at  position in a list of `size` indices.
CutSpot locate_in_cut(int64_t size, int64_t at, int64_t parts, int64_t split_factor, int64_t unit);

/// Returns positions [begin, end) of the list; both are clamped to its length.
Runs slice(const Runs& list, int64_t begin, int64_t end);

/// Returns the indices that are in both lists.
Runs intersect(const Runs& a, const Runs& b);

/// Returns the position of `index` in the list, or -1.
int64_t position_of(const Runs& list, int64_t index);

/// Returns the row-major index list of two dims: o * inner_size + i for o in `outer`, i in `inner`.
Runs flatten(const Runs& outer, const Runs& inner, int64_t inner_size);

/// Returns "[0, 3) [5, 7)", or "-" if empty.
std::string to_text(const Runs& list);

}  // namespace muonrt
