#include "layout/holders.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "layout/blocks.hpp"

namespace muonrt {

namespace {

/// The mesh positions of the ranks that hold one matrix. In a stack, the coordinates on the mesh
/// dims that cut dim 0 are fixed.
struct Submesh {
  int64_t base = 0;         // mesh position with the fixed coordinates, and 0 in the other dims
  std::vector<bool> fixed;  // for each mesh dim, true if its coordinate is fixed
  std::vector<int> shards;  // the sharding mesh dims whose coordinate is not fixed, ascending
};

Submesh submesh_of(const Layout& layout, int64_t index) {
  const int64_t count = matrix_count(layout);
  MUONRT_REQUIRE(index >= 0 && index < count, Status::kInvalidArgument, "layout of shape ",
                 layout.shape(), " has no matrix ", index, "; it has ", count);
  Submesh out;
  out.fixed.assign(static_cast<size_t>(layout.mesh().dims()), false);
  if (layout.dims() == 3) {
    const Layout::Spot spot = layout.locate(0, index);
    for (int k = 0; k < layout.mesh().dims(); ++k) {
      const int64_t c = spot.coords[static_cast<size_t>(k)];
      if (c < 0) continue;
      out.fixed[static_cast<size_t>(k)] = true;
      out.base += c * layout.mesh().stride(k);
    }
  }
  for (const int k : layout.shard_dims()) {
    if (!out.fixed[static_cast<size_t>(k)]) out.shards.push_back(k);
  }
  return out;
}

/// Returns Mesh::offset_over() for each shard over `dims`.
std::vector<int64_t> offsets(const Mesh& mesh, const std::vector<int>& dims) {
  std::vector<int64_t> out = {0}, next;
  for (const int k : dims) {
    next.clear();
    for (const int64_t offset : out) {
      for (int64_t c = 0; c < mesh.shape()[static_cast<size_t>(k)]; ++c) {
        next.push_back(offset + c * mesh.stride(k));
      }
    }
    out.swap(next);
  }
  return out;
}

}  // namespace

int64_t matrix_count(const Layout& layout) {
  MUONRT_REQUIRE(layout.dims() <= 3, Status::kInvalidArgument, "layout of shape ", layout.shape(),
                 " is neither a matrix nor a stack of matrices; view it as n_0 x rest");
  return layout.dims() == 3 ? layout.shape()[0] : 1;
}

MatrixHolders holders_of(const Layout& layout, int64_t matrix_index) {
  const Submesh sub = submesh_of(layout, matrix_index);
  const std::vector<int64_t> shards = offsets(layout.mesh(), sub.shards);
  MatrixHolders out;
  out.replicas.reserve(static_cast<size_t>(layout.replicas()));
  for (const int64_t replica : offsets(layout.mesh(), layout.replica_dims())) {
    std::vector<int>& ranks = out.replicas.emplace_back();
    ranks.reserve(shards.size());
    for (const int64_t shard : shards) {
      ranks.push_back(layout.mesh().ranks()[static_cast<size_t>(sub.base + replica + shard)]);
    }
  }
  return out;
}

int64_t holder_class(const Layout& layout, int64_t matrix_index) {
  return submesh_of(layout, matrix_index).base;
}

std::vector<int> matrix_shard_dims(const Layout& stack) { return submesh_of(stack, 0).shards; }

void add_shards(ShardRuns& runs, int64_t count, int64_t numel) {
  if (count == 0) return;
  const int64_t end = count + (runs.empty() ? 0 : runs.back().end);
  if (!runs.empty() && runs.back().numel == numel) {
    runs.back().end = end;
  } else {
    runs.push_back({end, numel});
  }
}

int64_t numel_of(const ShardRuns& runs, int64_t shard) {
  return std::upper_bound(runs.begin(), runs.end(), shard,
                          [](int64_t s, const ShardRun& run) { return s < run.end; })
      ->numel;
}

namespace {

/// A box of mesh positions whose ranks hold index lists of equal lengths. It consists of a range of
/// coordinates for each mesh dim, and the length of the index list for each tensor dim.
struct Box {
  std::vector<std::pair<int64_t, int64_t>> coords;
  std::vector<int64_t> lengths;
};

/// Divides the mesh into boxes by applying the cuts of a layout one after the other.
class Boxes {
 public:
  /// @param first_dim  Cuts of tensor dims before this one are ignored.
  Boxes(const Layout& layout, int first_dim) : mesh_(layout.mesh()) {
    Box all{{}, layout.tensor_shape()};
    if (all.lengths.empty()) all.lengths = {1};  // a scalar may have an Owner cut, too
    for (const int64_t n : mesh_.shape()) all.coords.emplace_back(0, n);
    boxes_ = {std::move(all)};
    for (const Cut& c : layout.cuts()) {
      if (c.tensor_dim < first_dim) continue;
      const int64_t parts = mesh_.count_over(c.mesh_dims);
      divide(c.mesh_dims, c.tensor_dim, parts, [&](int64_t size, int64_t part) {
        return cut_length(size, parts, part, c.split_factor, c.unit);
      });
    }
    if (layout.kind() == Layout::Kind::kRowBounds) {
      const RowBounds& r = layout.row_bounds();
      if (r.tensor_dim >= first_dim) add_bounds(r);
    } else if (layout.kind() == Layout::Kind::kOwner && first_dim == 0) {
      const Owner& o = layout.owner();
      for (Box& box : std::exchange(boxes_, {})) {
        const int64_t length = box.lengths[0], shards = mesh_.count_over(o.mesh_dims);
        add(box, o.mesh_dims, 0, 0, o.shard, 0);
        add(box, o.mesh_dims, 0, o.shard, o.shard + 1, length);
        add(box, o.mesh_dims, 0, o.shard + 1, shards, 0);
      }
    }
  }

  /// Returns the number of elements of each shard, in order of the shard index over the ascending
  /// mesh dims `dims`.
  ShardRuns runs(const std::vector<int>& dims, int first_dim) const {
    struct Interval {
      int64_t begin, end, numel;
    };
    std::vector<Interval> all;
    for (const Box& box : boxes_) {
      int64_t numel = 1;
      for (size_t d = static_cast<size_t>(first_dim); d < box.lengths.size(); ++d)
        numel *= box.lengths[d];
      for_each_interval(box, dims, 0, [&](int64_t begin, int64_t end) {
        all.push_back({begin, end, numel});
      });
    }
    std::sort(all.begin(), all.end(),
              [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
    ShardRuns out;
    for (const Interval& i : all) add_shards(out, i.end - i.begin, i.numel);
    return out;
  }

 private:
  /// Divides every box by the parts of a cut. `length` returns the number of indices of a part.
  /// Because this number never increases from one part to the next, bisection finds parts of equal
  /// length.
  template <class Length>
  void divide(const std::vector<int>& dims, int tensor_dim, int64_t parts, const Length& length) {
    for (Box& box : std::exchange(boxes_, {})) {
      const int64_t size = box.lengths[static_cast<size_t>(tensor_dim)];
      for (int64_t part = 0, end = 0; part < parts; part = end) {
        const int64_t n = length(size, part);
        end = length(size, parts - 1) == n ? parts : parts - 1;
        for (int64_t equal = part; end < parts && end - equal > 1;) {
          const int64_t middle = equal + (end - equal) / 2;
          (length(size, middle) == n ? equal : end) = middle;
        }
        add(box, dims, tensor_dim, part, end, n);
      }
    }
  }

  void add_bounds(const RowBounds& r) {
    for (Box& box : std::exchange(boxes_, {})) {
      for (size_t i = 0; i + 1 < r.bounds.size(); ++i) {
        const auto shard = static_cast<int64_t>(i);
        add(box, r.mesh_dims, r.tensor_dim, shard, shard + 1, r.bounds[i + 1] - r.bounds[i]);
      }
    }
  }

  /// Adds the part of `box` that consists of shards [begin, end) over `dims`. In each of these
  /// shards, the index list for `tensor_dim` has `length` entries.
  void add(Box box, std::span<const int> dims, int tensor_dim, int64_t begin, int64_t end,
           int64_t length) {
    if (begin == end) return;
    box.lengths[static_cast<size_t>(tensor_dim)] = length;
    if (dims.empty()) {
      boxes_.push_back(std::move(box));
      return;
    }
    const auto rest = dims.subspan(1);
    const int64_t inner = mesh_.count_over({rest.begin(), rest.end()});
    auto& coords = box.coords[static_cast<size_t>(dims[0])];
    // Coordinates whose shards are all in the range.
    const int64_t first = ceil_div(begin, inner), last = end / inner;
    if (first < last) {
      coords = {first, last};
      boxes_.push_back(box);
    }
    const auto add_inner = [&](int64_t from, int64_t to) {
      if (from >= to) return;
      const int64_t at = from / inner;
      coords = {at, at + 1};
      add(box, rest, tensor_dim, from - at * inner, to - at * inner, length);
    };
    add_inner(begin, std::min(end, first * inner));
    if (last >= first) add_inner(last * inner, end);
  }

  /// Calls `use` with each interval of shard indices over `dims` in a box.
  template <class Use>
  void for_each_interval(const Box& box, std::span<const int> dims, int64_t base,
                         const Use& use) const {
    if (dims.empty()) return use(base, base + 1);
    const auto [begin, end] = box.coords[static_cast<size_t>(dims[0])];
    const auto rest = dims.subspan(1);
    const int64_t inner = mesh_.count_over({rest.begin(), rest.end()});
    const bool whole = std::all_of(rest.begin(), rest.end(), [&](int k) {
      return box.coords[static_cast<size_t>(k)] ==
             std::pair(int64_t{0}, mesh_.shape()[static_cast<size_t>(k)]);
    });
    if (whole) return use(base + begin * inner, base + end * inner);
    for (int64_t c = begin; c < end; ++c) for_each_interval(box, rest, base + c * inner, use);
  }

  const Mesh& mesh_;
  std::vector<Box> boxes_;
};

}  // namespace

ShardRuns shard_runs(const Layout& layout) {
  if (layout.product_form()) return Boxes(layout, 0).runs(layout.shard_dims(), 0);
  ShardRuns out;
  for (int64_t s = 0; s < layout.shard_count(); ++s)
    add_shards(out, 1, layout.local_numel(layout.rank_of(0, s)));
  return out;
}

ShardRuns shard_runs(const Layout& stack, int64_t e) {
  const std::vector<int> shards = submesh_of(stack, e).shards;
  if (stack.product_form())
    return Boxes(stack, stack.first_dim(1)).runs(shards, stack.first_dim(1));
  ShardRuns out;
  const MatrixHolders holders = holders_of(stack, e);
  for (const int rank : holders.replicas.front()) {
    int64_t numel = 0;
    for (const Block& block : blocks_of_matrix(stack, rank, e)) numel += block.numel();
    add_shards(out, 1, numel);
  }
  return out;
}

}  // namespace muonrt
