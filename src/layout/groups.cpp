// Shard groups, replica groups, and the description of a layout.
#include <algorithm>
#include <iterator>

#include "base/error.hpp"
#include "layout/layout.hpp"

namespace muonrt {

int64_t Layout::shard_count() const { return mesh_->count_over(shard_dims_); }
int64_t Layout::replicas() const { return mesh_->count_over(replica_dims_); }
int64_t Layout::partial_count() const { return mesh_->count_over(partial_dims_); }

int64_t Layout::shard_index(int rank) const {
  const int64_t position = mesh_->position_of(rank);
  return position < 0 ? -1 : mesh_->index_over(shard_dims_, position);
}

int64_t Layout::replica_index(int rank) const {
  const int64_t position = mesh_->position_of(rank);
  return position < 0 ? -1 : mesh_->index_over(replica_dims_, position);
}

int64_t Layout::partial_index(int rank) const {
  const int64_t position = mesh_->position_of(rank);
  return position < 0 ? -1 : mesh_->index_over(partial_dims_, position);
}

Layout Layout::with_partial(std::vector<int> partial_mesh_dims) const {
  std::sort(partial_mesh_dims.begin(), partial_mesh_dims.end());
  for (const int k : partial_mesh_dims) {
    MUONRT_REQUIRE(std::binary_search(replica_dims_.begin(), replica_dims_.end(), k),
                   Status::kInvalidArgument, "layout: mesh dimension ", k, " cannot be partial (",
                   describe(), "); use a dimension that replicates");
  }
  Layout out = *this;
  out.partial_dims_ = std::move(partial_mesh_dims);
  return out;
}

std::vector<int> Layout::full_replica_dims() const {
  std::vector<int> full;
  std::set_difference(replica_dims_.begin(), replica_dims_.end(), partial_dims_.begin(),
                      partial_dims_.end(), std::back_inserter(full));
  return full;
}

int64_t Layout::full_replica_index(int rank) const {
  const int64_t position = mesh_->position_of(rank);
  return position < 0 ? -1 : mesh_->index_over(full_replica_dims(), position);
}

int Layout::equal_holder(int rank, int64_t index, const std::vector<int>& full) const {
  const int64_t position = mesh_->position_of(rank);
  const int64_t first = position - mesh_->offset_over(full, mesh_->index_over(full, position));
  return mesh_->ranks()[static_cast<size_t>(first + mesh_->offset_over(full, index))];
}

int Layout::first_equal_holder(int rank) const {
  int64_t position = mesh_->position_of(rank);
  if (position < 0) return -1;
  for (const int k : replica_dims_) {
    if (!std::binary_search(partial_dims_.begin(), partial_dims_.end(), k))
      position -= mesh_->coord(position, k) * mesh_->stride(k);
  }
  return mesh_->ranks()[static_cast<size_t>(position)];
}

int Layout::rank_of(int64_t replica, int64_t shard) const {
  MUONRT_REQUIRE(replica >= 0 && replica < replicas() && shard >= 0 && shard < shard_count(),
                 Status::kInvalidArgument, "layout: replica ", replica, ", shard ", shard,
                 " does not exist; there are ", replicas(), " replicas of ", shard_count(),
                 " shards");
  const int64_t position =
      mesh_->offset_over(replica_dims_, replica) + mesh_->offset_over(shard_dims_, shard);
  return mesh_->ranks()[static_cast<size_t>(position)];
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

/// Returns "dp=2", "dp*cp=4".
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
  for (const Cut& c : cuts_) {
    const Placement p{c.split_factor == 1 ? PlacementKind::kShard : PlacementKind::kStridedShard,
                      c.tensor_dim, c.split_factor};
    say(cat(out.empty() ? "" : "then ", to_text(p),
            c.unit == 1 ? std::string() : cat(" by ", c.unit), " over ",
            over(*mesh_, c.mesh_dims)));
  }
  const char* then = out.empty() ? "" : "then ";
  if (kind() == Kind::kRowBounds) {
    const RowBounds& r = row_bounds();
    const std::string bounds =
        r.bounds.size() <= 17 ? cat(r.bounds) : cat(r.bounds.size() - 1, " given ranges");
    say(cat(then, "bounds ", bounds, " of dim ", r.tensor_dim, " over ",
            over(*mesh_, r.mesh_dims)));
  } else if (kind() == Kind::kOwner) {
    say(cat(then, "whole on shard ", owner().shard, " of ", over(*mesh_, owner().mesh_dims)));
  } else if (kind() == Kind::kFlat) {
    say(cat(then, "flat ranges over ", over(*mesh_, flat().mesh_dims)));
  }
  for (const int k : replica_dims_) {
    bool partial = false;
    for (const int p : partial_dims_) partial = partial || p == k;
    say(cat(partial ? "P over " : "R over ", over(*mesh_, {k})));
  }
  return out.empty() ? "whole on one rank" : out;
}

}  // namespace muonrt
