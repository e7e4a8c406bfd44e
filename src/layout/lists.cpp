// Computes the index lists of a layout: the indices that each mesh position holds.
#include <algorithm>

#include "base/error.hpp"
#include "layout/layout.hpp"

namespace muonrt {

Runs Layout::tensor_runs(int64_t position, int dim) const {
  Runs out = whole(d_->tensor_shape[static_cast<size_t>(dim)]);
  for (const Cut& c : d_->cuts) {
    if (c.tensor_dim != dim) continue;
    out = cut(out, d_->mesh->count_over(c.mesh_dims), d_->mesh->index_over(c.mesh_dims, position),
              c.split_factor, c.unit);
  }
  if (const auto* r = std::get_if<RowBounds>(&d_->last); r != nullptr && r->tensor_dim == dim) {
    const auto shard = static_cast<size_t>(d_->mesh->index_over(r->mesh_dims, position));
    out = slice(out, r->bounds[shard], r->bounds[shard + 1]);
  }
  if (dim == 0 && !owned_at(position)) out.clear();
  return out;
}

Runs Layout::runs_at(int64_t position, int dim) const {
  const int first = first_dim(dim);
  int last = first_dim(dim + 1) - 1;
  Runs out = tensor_runs(position, last);
  int64_t size = d_->tensor_shape[static_cast<size_t>(last)];
  while (--last >= first) {
    out = flatten(tensor_runs(position, last), out, size);
    size *= d_->tensor_shape[static_cast<size_t>(last)];
  }
  return out;
}

int64_t Layout::list_length_after_cuts(int64_t position, int dim) const {
  int64_t size = d_->tensor_shape[static_cast<size_t>(dim)];
  for (const Cut& c : d_->cuts) {
    if (c.tensor_dim != dim) continue;
    size = cut_length(size, d_->mesh->count_over(c.mesh_dims),
                      d_->mesh->index_over(c.mesh_dims, position), c.split_factor, c.unit);
  }
  return size;
}

int64_t Layout::list_length(int64_t position, int dim) const {
  if (dim == 0 && !owned_at(position)) return 0;
  if (const auto* r = std::get_if<RowBounds>(&d_->last); r != nullptr && r->tensor_dim == dim) {
    const auto shard = static_cast<size_t>(d_->mesh->index_over(r->mesh_dims, position));
    return r->bounds[shard + 1] - r->bounds[shard];
  }
  return list_length_after_cuts(position, dim);
}

bool Layout::owned_at(int64_t position) const {
  const auto* o = std::get_if<Owner>(&d_->last);
  return o == nullptr || d_->mesh->index_over(o->mesh_dims, position) == o->shard;
}

int64_t Layout::numel_before_flat(int64_t position) const {
  if (!owned_at(position)) return 0;
  int64_t out = 1;
  for (int d = 0; d < static_cast<int>(d_->tensor_shape.size()); ++d) {
    out *= list_length(position, d);
  }
  return out;
}

std::pair<int64_t, int64_t> Layout::flat_range_at(int64_t position) const {
  const auto* f = std::get_if<FlatRanges>(&d_->last);
  if (f == nullptr) return {0, numel_before_flat(position)};
  const bool by_shard = std::ssize(f->ranges) == d_->mesh->count_over(f->mesh_dims);
  const int64_t shard = d_->mesh->index_over(by_shard ? f->mesh_dims : d_->shard_dims, position);
  return f->ranges[static_cast<size_t>(shard)];
}

Runs Layout::runs_before_flat(int rank, int dim) const {
  MUONRT_REQUIRE(dim >= 0 && dim < dims(), Status::kInvalidArgument, "layout of shape ", d_->shape,
                 ": tensor dim ", dim, " does not exist; give 0 to ", dims() - 1);
  const int64_t position = d_->mesh->position_of(rank);
  return position < 0 ? Runs{} : runs_at(position, dim);
}

Runs Layout::runs(int rank, int dim) const {
  MUONRT_REQUIRE(product_form(), Status::kInvalidArgument,
                 "a layout with flat ranges has no index lists, because a range may begin or end "
                 "inside a row; use the ranges");
  return runs_before_flat(rank, dim);
}

std::vector<int64_t> Layout::local_shape(int rank) const {
  const int64_t position = d_->mesh->position_of(rank);
  if (!product_form()) return {local_numel(rank)};
  std::vector<int64_t> out(d_->shape.size(), 0);
  if (position < 0) return out;
  for (int d = 0; d < dims(); ++d) {
    int64_t& size = out[static_cast<size_t>(d)];
    size = 1;
    for (int t = first_dim(d); t < first_dim(d + 1); ++t) size *= list_length(position, t);
  }
  return out;
}

int64_t Layout::local_numel(int rank) const {
  const auto range = flat_range(rank);
  return range.second - range.first;
}

std::pair<int64_t, int64_t> Layout::flat_range(int rank) const {
  const int64_t position = d_->mesh->position_of(rank);
  if (position < 0) return {0, 0};
  return flat_range_at(position);
}

Layout::Spot Layout::locate(int dim, int64_t index) const {
  MUONRT_REQUIRE(dim >= 0 && dim < dims(), Status::kInvalidArgument, "layout of shape ", d_->shape,
                 ": tensor dim ", dim, " does not exist");
  int64_t inner = d_->shape[static_cast<size_t>(dim)];
  MUONRT_REQUIRE(index >= 0 && index < inner, Status::kInvalidArgument, "index ", index,
                 " is outside tensor dim ", dim, " of size ", inner, "; give 0 to ", inner - 1);
  Spot out{std::vector<int64_t>(static_cast<size_t>(d_->mesh->dims()), -1), 0};
  int64_t position = 0;  // position in the index list of the dims that were merged so far
  for (int t = first_dim(dim); t < first_dim(dim + 1); ++t) {
    inner /= d_->tensor_shape[static_cast<size_t>(t)];
    out.position = index / inner;
    index %= inner;
    const int64_t size = locate_in(t, out);
    position = position * size + out.position;
  }
  out.position = position;
  return out;
}

/// Locates index `spot.position` of a tensor dim. Replaces the index with its position in the index
/// list of the ranks that hold it, and stores their mesh coordinates in `spot`.
/// @return  The length of this list.
int64_t Layout::locate_in(int dim, Spot& spot) const {
  int64_t size = d_->tensor_shape[static_cast<size_t>(dim)];
  const auto put = [&](const std::vector<int>& mesh_dims, int64_t shard) {
    const int64_t position = d_->mesh->offset_over(mesh_dims, shard);
    for (const int k : mesh_dims)
      spot.coords[static_cast<size_t>(k)] = d_->mesh->coord(position, k);
  };
  for (const Cut& c : d_->cuts) {
    if (c.tensor_dim != dim) continue;
    const int64_t parts = d_->mesh->count_over(c.mesh_dims);
    const CutSpot at = locate_in_cut(size, spot.position, parts, c.split_factor, c.unit);
    size = cut_length(size, parts, at.part, c.split_factor, c.unit);
    spot.position = at.position;
    put(c.mesh_dims, at.part);
  }
  if (const auto* r = std::get_if<RowBounds>(&d_->last); r != nullptr && r->tensor_dim == dim) {
    const auto& b = r->bounds;
    const auto shard =
        static_cast<size_t>(std::upper_bound(b.begin(), b.end(), spot.position) - b.begin() - 1);
    spot.position -= b[shard];
    size = b[shard + 1] - b[shard];
    put(r->mesh_dims, static_cast<int64_t>(shard));
  }
  if (const auto* o = std::get_if<Owner>(&d_->last); o != nullptr && dim == 0) {
    put(o->mesh_dims, o->shard);
  }
  return size;
}

}  // namespace muonrt
