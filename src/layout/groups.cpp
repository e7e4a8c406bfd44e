// Implements the shard groups, the replica groups and the description of a layout.
#include <algorithm>
#include <iterator>

#include "base/error.hpp"
#include "layout/layout.hpp"

namespace muonrt {

int64_t Layout::shard_count() const { return d_->mesh->count_over(d_->shard_dims); }
int64_t Layout::replicas() const { return d_->mesh->count_over(d_->replica_dims); }
int64_t Layout::partial_count() const { return d_->mesh->count_over(d_->partial_dims); }

int64_t Layout::shard_index(int rank) const {
  const int64_t position = d_->mesh->position_of(rank);
  return position < 0 ? -1 : d_->mesh->index_over(d_->shard_dims, position);
}

int64_t Layout::replica_index(int rank) const {
  const int64_t position = d_->mesh->position_of(rank);
  return position < 0 ? -1 : d_->mesh->index_over(d_->replica_dims, position);
}

int64_t Layout::partial_index(int rank) const {
  const int64_t position = d_->mesh->position_of(rank);
  return position < 0 ? -1 : d_->mesh->index_over(d_->partial_dims, position);
}

Layout Layout::with_partial(std::vector<int> partial_mesh_dims) const {
  std::sort(partial_mesh_dims.begin(), partial_mesh_dims.end());
  for (const int k : partial_mesh_dims) {
    MUONRT_REQUIRE(std::binary_search(d_->replica_dims.begin(), d_->replica_dims.end(), k),
                   Status::kInvalidArgument, "layout: mesh dimension ", k, " cannot be partial in ",
                   describe(), "; use a dimension that replicates");
  }
  auto made = std::make_shared<Definition>(*d_);
  made->partial_dims = std::move(partial_mesh_dims);
  return Layout(std::move(made));
}

std::vector<int> Layout::full_replica_dims() const {
  std::vector<int> full;
  std::set_difference(d_->replica_dims.begin(), d_->replica_dims.end(), d_->partial_dims.begin(),
                      d_->partial_dims.end(), std::back_inserter(full));
  return full;
}

int64_t Layout::full_replica_index(int rank) const {
  const int64_t position = d_->mesh->position_of(rank);
  return position < 0 ? -1 : d_->mesh->index_over(full_replica_dims(), position);
}

int Layout::equal_holder(int rank, int64_t index, const std::vector<int>& full) const {
  const int64_t position = d_->mesh->position_of(rank);
  const int64_t first =
      position - d_->mesh->offset_over(full, d_->mesh->index_over(full, position));
  return d_->mesh->ranks()[static_cast<size_t>(first + d_->mesh->offset_over(full, index))];
}

int Layout::first_equal_holder(int rank) const {
  int64_t position = d_->mesh->position_of(rank);
  if (position < 0) return -1;
  for (const int k : d_->replica_dims) {
    if (!std::binary_search(d_->partial_dims.begin(), d_->partial_dims.end(), k))
      position -= d_->mesh->coord(position, k) * d_->mesh->stride(k);
  }
  return d_->mesh->ranks()[static_cast<size_t>(position)];
}

int Layout::rank_of(int64_t replica, int64_t shard) const {
  MUONRT_REQUIRE(replica >= 0 && replica < replicas() && shard >= 0 && shard < shard_count(),
                 Status::kInvalidArgument, "layout: replica ", replica, ", shard ", shard,
                 " does not exist; there are ", replicas(), " replicas of ", shard_count(),
                 " shards");
  const int64_t position = d_->mesh->offset_over(d_->replica_dims, replica) +
                           d_->mesh->offset_over(d_->shard_dims, shard);
  return d_->mesh->ranks()[static_cast<size_t>(position)];
}

std::vector<int> Layout::shard_group(int rank) const {
  std::vector<int> out;
  const int64_t replica = replica_index(rank);
  if (replica < 0) return out;
  const int64_t shards = shard_count();
  out.reserve(static_cast<size_t>(shards));
  for (int64_t shard = 0; shard < shards; ++shard) out.push_back(rank_of(replica, shard));
  return out;
}

std::vector<int> Layout::replica_group(int rank) const {
  std::vector<int> out;
  const int64_t shard = shard_index(rank);
  if (shard < 0) return out;
  const int64_t n = replicas();
  out.reserve(static_cast<size_t>(n));
  for (int64_t replica = 0; replica < n; ++replica) out.push_back(rank_of(replica, shard));
  return out;
}

namespace {

/// Returns dims and their size as text, such as "dp=2" or "dp*cp=4".
std::string over(const Mesh& mesh, const std::vector<int>& dims) {
  std::string out;
  for (const int k : dims) {
    out += cat(out.empty() ? "" : "*", mesh.names()[static_cast<size_t>(k)]);
  }
  return cat(out, "=", mesh.count_over(dims));
}

}  // namespace

std::string Layout::describe() const {
  std::string out;
  const auto say = [&](const std::string& text) { out += cat(out.empty() ? "" : ", ", text); };
  for (const Cut& c : d_->cuts) {
    const Placement p{c.split_factor == 1 ? PlacementKind::kShard : PlacementKind::kStridedShard,
                      c.tensor_dim, c.split_factor};
    say(cat(out.empty() ? "" : "then ", to_text(p),
            c.unit == 1 ? std::string() : cat(" by ", c.unit), " over ",
            over(*d_->mesh, c.mesh_dims)));
  }
  const char* then = out.empty() ? "" : "then ";
  if (kind() == Kind::kRowBounds) {
    const RowBounds& r = row_bounds();
    const std::string bounds =
        r.bounds.size() <= 17 ? cat(r.bounds) : cat(r.bounds.size() - 1, " given ranges");
    say(cat(then, "bounds ", bounds, " of dim ", r.tensor_dim, " over ",
            over(*d_->mesh, r.mesh_dims)));
  } else if (kind() == Kind::kOwner) {
    say(cat(then, "whole on shard ", owner().shard, " of ", over(*d_->mesh, owner().mesh_dims)));
  } else if (kind() == Kind::kFlat) {
    say(cat(then, "flat ranges over ", over(*d_->mesh, flat().mesh_dims)));
  }
  for (const int k : d_->replica_dims) {
    bool partial = false;
    for (const int p : d_->partial_dims) partial = partial || p == k;
    say(cat(partial ? "P over " : "R over ", over(*d_->mesh, {k})));
  }
  return out.empty() ? "whole on one rank" : out;
}

}  // namespace muonrt
