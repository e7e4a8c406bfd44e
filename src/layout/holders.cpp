#include "layout/holders.hpp"

#include "base/error.hpp"

namespace muonrt {

namespace {

/// The part of a mesh that holds one matrix: the dims that cut dim 0 have fixed coordinates.
struct Submesh {
  int64_t base = 0;         // position of the fixed coordinates
  std::vector<bool> fixed;  // per mesh dim
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

/// Returns Mesh::offset_over for every shard over `dims`.
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

}  // namespace muonrt
