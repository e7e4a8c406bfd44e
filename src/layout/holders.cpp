#include "layout/holders.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace muonrt {

namespace {

/// The part of a mesh that holds one matrix: coordinates fixed on the dims that cut dim 0.
struct Submesh {
  int64_t base = 0;         // position of the fixed coordinates
  std::vector<bool> fixed;  // per mesh dim
  int64_t index_there = 0;  // position of the matrix in the dim-0 list of its holders
  std::vector<int> shards;  // sharding dims that are not fixed, ascending
};

Submesh submesh_of(const Layout& layout, int64_t index) {
  const int64_t count = matrix_count(layout);
  MUONRT_REQUIRE(index >= 0 && index < count, Status::kInvalidArgument, "layout of shape ",
                 layout.shape(), " has no matrix ", index, "; it has ", count);
  Submesh out;
  out.fixed.assign(static_cast<size_t>(layout.mesh().dims()), false);
  if (layout.dims() == 3) {
    const Layout::Spot spot = layout.locate(0, index);
    out.index_there = spot.position;
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

/// Mesh::offset_over for every shard over `dims`.
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

/// Flat ranges of one matrix of the stack, one for each shard of its shard group.
std::vector<std::pair<int64_t, int64_t>> matrix_ranges(const Layout& stack, const Submesh& sub) {
  std::vector<std::pair<int64_t, int64_t>> out;
  for (const int64_t offset : offsets(stack.mesh(), sub.shards)) {
    const int rank = stack.mesh().ranks()[static_cast<size_t>(sub.base + offset)];
    const int64_t numel =
        length(stack.runs_before_flat(rank, 1)) * length(stack.runs_before_flat(rank, 2));
    const auto [begin, end] = stack.flat_range(rank);
    const int64_t first = sub.index_there * numel;
    const int64_t b = std::clamp(begin - first, int64_t{0}, numel);
    out.emplace_back(b, std::max(b, std::min(end - first, numel)));
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

Layout matrix_layout(const Layout& stack, int64_t e) {
  MUONRT_REQUIRE(stack.dims() == 3, Status::kInvalidArgument, "layout of shape ", stack.shape(),
                 " is no stack of matrices; give (count, rows, cols)");
  const Submesh sub = submesh_of(stack, e);
  const Mesh& mesh = stack.mesh();
  std::vector<int> kept, place(static_cast<size_t>(mesh.dims()), -1);
  std::vector<int64_t> sizes;
  std::vector<std::string> names;
  for (int k = 0; k < mesh.dims(); ++k) {
    if (sub.fixed[static_cast<size_t>(k)]) continue;
    place[static_cast<size_t>(k)] = static_cast<int>(kept.size());
    kept.push_back(k);
    sizes.push_back(mesh.shape()[static_cast<size_t>(k)]);
    names.push_back(mesh.names()[static_cast<size_t>(k)]);
  }
  std::vector<int32_t> ranks;
  for (const int64_t offset : offsets(mesh, kept)) {
    ranks.push_back(mesh.ranks()[static_cast<size_t>(sub.base + offset)]);
  }
  const auto moved = [&](std::vector<int> dims) {
    for (int& k : dims) k = place[static_cast<size_t>(k)];
    return dims;
  };
  auto submesh = std::make_shared<const Mesh>(sizes, names, ranks);
  const std::vector<int64_t> shape = {stack.shape()[1], stack.shape()[2]};
  std::vector<Cut> cuts;
  for (const Cut& c : stack.cuts()) {
    if (c.tensor_dim == 0) continue;
    cuts.push_back({moved(c.mesh_dims), c.tensor_dim - 1, c.split_factor, c.unit});
  }
  const std::vector<int> partial = moved(stack.partial_dims());
  if (stack.kind() == Layout::Kind::kRowBounds && stack.row_bounds().tensor_dim > 0) {
    const RowBounds& r = stack.row_bounds();
    return Layout::with_row_bounds(submesh, shape, cuts, moved(r.mesh_dims), r.tensor_dim - 1,
                                   r.bounds, partial);
  }
  if (stack.kind() == Layout::Kind::kFlat) {
    std::vector<int> dims = moved(stack.flat().mesh_dims);
    std::sort(dims.begin(), dims.end());  // as matrix_ranges numbers the shards
    return Layout::with_flat(submesh, shape, cuts, dims, matrix_ranges(stack, sub), partial);
  }
  return Layout::from_cuts(submesh, shape, cuts, partial);
}

}  // namespace muonrt
