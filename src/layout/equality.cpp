#include <algorithm>

#include "base/hash.hpp"
#include "layout/blocks.hpp"
#include "layout/layout.hpp"

namespace muonrt {

namespace {

void feed(Hash& hash, const std::vector<int64_t>& values) {
  hash.value(static_cast<int64_t>(values.size()));
  for (const int64_t v : values) hash.value(v);
}

/// Adds the mesh dims to the hash. Each dim is identified by its index among the dims of a size
/// above 1.
void feed_dims(Hash& hash, const Mesh& mesh, const std::vector<int>& dims) {
  for (const int k : dims) {
    if (mesh.shape()[static_cast<size_t>(k)] == 1) continue;
    const auto first = mesh.shape().begin();
    hash.value(
        static_cast<int64_t>(std::count_if(first, first + k, [](int64_t n) { return n > 1; })));
  }
  hash.value(int64_t{-1});
}

/// Returns true if `rank` holds the same elements in both layouts. Flat ranges are compared as
/// blocks: blocks are as large as possible, so equal sets of elements have equal blocks.
bool same_elements(const Layout& a, const Layout& b, int rank) {
  if (a.local_numel(rank) != b.local_numel(rank)) return false;
  if (!a.product_form() || !b.product_form()) return blocks_of(a, rank) == blocks_of(b, rank);
  for (int d = 0; d < a.dims(); ++d) {
    if (a.runs(rank, d) != b.runs(rank, d)) return false;
  }
  return true;
}

bool same_partial_index(const Layout& a, const Layout& b, int rank) {
  return a.partial_count() == b.partial_count() && a.partial_index(rank) == b.partial_index(rank);
}

/// Returns one rank for each combination of the mesh coordinates on which `a` or `b` depends. The
/// two layouts must have the same mesh.
std::vector<int> representative_ranks(const Layout& a, const Layout& b) {
  std::vector<int> dims;
  for (const auto* list :
       {&a.shard_dims(), &b.shard_dims(), &a.partial_dims(), &b.partial_dims()}) {
    dims.insert(dims.end(), list->begin(), list->end());
  }
  std::sort(dims.begin(), dims.end());
  dims.erase(std::unique(dims.begin(), dims.end()), dims.end());
  std::vector<int> out;
  for (int64_t i = 0; i < a.mesh().count_over(dims); ++i) {
    out.push_back(a.mesh().ranks()[static_cast<size_t>(a.mesh().offset_over(dims, i))]);
  }
  return out;
}

}  // namespace

uint64_t Layout::hash() const {
  Hash hash;
  feed(hash, d_->shape);
  feed(hash, d_->tensor_shape);
  hash.value(static_cast<int64_t>(d_->mesh->hash()));
  for (const Cut& c : d_->cuts) {
    if (d_->mesh->count_over(c.mesh_dims) == 1) continue;
    feed_dims(hash, *d_->mesh, c.mesh_dims);
    feed(hash, {c.tensor_dim, c.split_factor, c.unit});
  }
  hash.value(static_cast<int64_t>(d_->last.index()));
  if (kind() == Kind::kRowBounds) {
    feed_dims(hash, *d_->mesh, row_bounds().mesh_dims);
    hash.value(static_cast<int64_t>(row_bounds().tensor_dim));
    feed(hash, row_bounds().bounds);
  } else if (kind() == Kind::kOwner) {
    feed_dims(hash, *d_->mesh, owner().mesh_dims);
    hash.value(owner().shard);
  } else if (kind() == Kind::kFlat) {
    feed_dims(hash, *d_->mesh, flat().mesh_dims);
    for (const auto& [begin, end] : flat().ranges) feed(hash, {begin, end});
  }
  feed_dims(hash, *d_->mesh, d_->partial_dims);
  return hash.digest();
}

bool operator==(const Layout& a, const Layout& b) {
  if (a.d_ == b.d_) return true;
  if (a.d_->shape != b.d_->shape) return false;
  const bool same_mesh = a.d_->mesh == b.d_->mesh || *a.d_->mesh == *b.d_->mesh;
  if (same_mesh && a.d_->tensor_shape == b.d_->tensor_shape && a.d_->cuts == b.d_->cuts &&
      a.d_->last == b.d_->last && a.d_->partial_dims == b.d_->partial_dims) {
    return true;
  }
  if (!same_mesh) {
    if (a.d_->mesh->size() != b.d_->mesh->size()) return false;
    for (const int rank : a.d_->mesh->ranks()) {
      if (!b.holds_mesh_rank(rank)) return false;
    }
  }
  const std::vector<int> ranks = same_mesh ? representative_ranks(a, b) : a.d_->mesh->ranks();
  const Layout left = a.as_matrix(), right = b.as_matrix();
  const bool products = a.product_form() && b.product_form();
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
    return same_partial_index(a, b, rank) &&
           (products ? same_elements(a, b, rank) : same_elements(left, right, rank));
  });
}

}  // namespace muonrt
