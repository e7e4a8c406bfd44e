#include "plan/owners/holder_table.hpp"

#include <algorithm>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/hash.hpp"
#include "layout/holders.hpp"

namespace muonrt {

namespace {

void check_ranks(const ParamSpec& spec, int32_t world) {
  const int32_t rank = spec.layout.mesh().largest_rank();
  MUONRT_REQUIRE(rank < world, Status::kInvalidArgument, "param '", spec.name,
                 "': its mesh contains rank ", rank, ", but the ranks are 0 to ", world - 1,
                 "; use a mesh of ranks of the communicator");
}

void check_matrix(const ParamSpec& spec) {
  const std::vector<int64_t>& shape = spec.layout.shape();
  if (spec.stack) {
    MUONRT_REQUIRE(
        shape.size() == 3, Status::kInvalidArgument, "param '", spec.name, "': shape ", shape,
        " is declared a stack, but does not have 3 dims; pass experts x rows x cols, or remove "
        "the declaration");
    return;
  }
  MUONRT_REQUIRE(shape.size() != 3, Status::kInvalidArgument, "param '", spec.name, "': shape ",
                 shape, " is not a matrix, but Muon needs 2 dims; declare it a stack of ", shape[0],
                 " matrices, view it as a matrix, or use AdamW");
  MUONRT_REQUIRE(shape.size() == 2, Status::kInvalidArgument, "param '", spec.name, "': shape ",
                 shape, " is not a matrix, but Muon needs 2 dims; ",
                 shape.size() > 3 ? "view it as a matrix or use AdamW" : "use AdamW");
}

void check_grad_layout(const ParamSpec& spec) {
  MUONRT_REQUIRE(spec.layout.partial_dims().empty(), Status::kInvalidArgument, "param '", spec.name,
                 "': its layout has partial dimensions (", spec.layout.describe(),
                 "), but its gradient has a separate layout; declare the partial dimensions in "
                 "the layout of the gradient");
  MUONRT_REQUIRE(spec.grad_layout->shape() == spec.layout.shape(), Status::kInvalidArgument,
                 "param '", spec.name, "': the layout of the gradient has the shape ",
                 spec.grad_layout->shape(), ", but the parameter has ", spec.layout.shape(),
                 "; use the same shape");
}

/// Returns the holders of a whole tensor, which may have any number of dims.
MatrixHolders whole_holders(const Layout& layout) {
  MatrixHolders out;
  for (int64_t replica = 0; replica < layout.replicas(); ++replica) {
    std::vector<int>& ranks = out.replicas.emplace_back();
    for (int64_t shard = 0; shard < layout.shard_count(); ++shard)
      ranks.push_back(layout.rank_of(replica, shard));
  }
  return out;
}

int64_t area(const Runs& rows, const Runs& cols) { return checked_mul(length(rows), length(cols)); }

/// Checks that every element of a matrix is in exactly one part. A step would not update an element
/// that is in no part, and would update an element more than once if it is in several parts.
void check_parts(const ParamSpec& spec) {
  const std::vector<int64_t>& shape = spec.layout.shape();
  const int64_t rows = shape[shape.size() - 2], cols = shape.back();
  int64_t covered = 0;
  for (size_t i = 0; i < spec.parts.size(); ++i) {
    const MatrixPart& part = spec.parts[i];
    const bool inside = !part.rows.empty() && !part.cols.empty() && part.rows.front().begin >= 0 &&
                        part.rows.back().end <= rows && part.cols.front().begin >= 0 &&
                        part.cols.back().end <= cols;
    MUONRT_REQUIRE(inside, Status::kInvalidArgument, "param '", spec.name, "': part '", part.name,
                   "' has rows ", to_text(part.rows), " and columns ", to_text(part.cols),
                   ", but each matrix is ", rows, " x ", cols, "; use a block inside it");
    covered += area(part.rows, part.cols);
    for (size_t j = 0; j < i; ++j) {
      const MatrixPart& other = spec.parts[j];
      MUONRT_REQUIRE(area(intersect(part.rows, other.rows), intersect(part.cols, other.cols)) == 0,
                     Status::kInvalidArgument, "param '", spec.name, "': parts '", other.name,
                     "' and '", part.name, "' overlap; define disjoint parts");
    }
  }
  MUONRT_REQUIRE(covered == rows * cols, Status::kInvalidArgument, "param '", spec.name,
                 "': the parts cover only ", covered, " of ", rows * cols,
                 " elements, and the others would never be updated; define parts that cover the "
                 "whole matrix");
}

/// Returns a hash that is the same for all parameters with equal layouts and parts.
uint64_t digest(const ParamSpec& spec) {
  Hash hash;
  hash.value(static_cast<int64_t>(spec.layout.hash()));
  for (const MatrixPart& part : spec.parts) {
    for (const Runs* runs : {&part.rows, &part.cols}) {
      hash.value(static_cast<int64_t>(runs->size()));
      for (const Run& run : *runs) {
        hash.value(run.begin);
        hash.value(run.end);
      }
    }
  }
  return hash.digest();
}

}  // namespace

const Holder* HolderGroup::find(int32_t rank) const {
  const auto at = std::lower_bound(members.begin(), members.end(), rank,
                                   [](const Holder& p, int32_t r) { return p.rank < r; });
  return at != members.end() && at->rank == rank ? &*at : nullptr;
}

HolderTable::HolderTable(const std::vector<ParamSpec>& params, int32_t world) {
  Known known;
  layout_of_.reserve(params.size());
  grad_layout_of_.reserve(params.size());
  for (const ParamSpec& spec : params) {
    layout_of_.push_back(enter(spec, known, world));
    grad_layout_of_.push_back(layout_of_.back());
    if (!spec.grad_layout) continue;
    check_grad_layout(spec);
    ParamSpec gradient = spec;
    gradient.layout = *spec.grad_layout;
    grad_layout_of_.back() = enter(gradient, known, world);
  }
}

int32_t HolderTable::enter(const ParamSpec& spec, Known& known, int32_t world) {
  const auto [at, is_new] = known.layouts.try_emplace(digest(spec), layouts());
  if (is_new) {
    check_ranks(spec, world);
    layouts_.emplace_back();
  }
  if (spec.role == Role::kMuon) {
    check_matrix(spec);
    if (!spec.parts.empty() && spec.layout.numel() > 0) check_parts(spec);
    Entry& entry = layouts_[static_cast<size_t>(at->second)];
    if (entry.first_kind < 0) find_groups(spec, entry, known);
  } else if (owner_assembles_gradient(spec)) {
    Entry& entry = layouts_[static_cast<size_t>(at->second)];
    if (entry.whole < 0) entry.whole = group_for(spec.layout, kWholeTensor, known);
  }
  return at->second;
}

void HolderTable::find_groups(const ParamSpec& spec, Entry& entry, Known& known) {
  const int64_t experts = spec.layout.numel() == 0 ? 0 : matrix_count(spec.layout);
  const int64_t matrices = checked_mul(experts, parts_of(spec));
  MUONRT_REQUIRE(matrices <= INT32_MAX - kinds_, Status::kInvalidArgument, "param '", spec.name,
                 "': ", matrices, " matrices are more than the planner supports; split the stack");
  entry.first_kind = kinds_;
  kinds_ += static_cast<int32_t>(matrices);
  entry.groups.reserve(static_cast<size_t>(matrices));
  std::unordered_map<int64_t, int32_t> by_class;
  for (int64_t e = 0; e < experts; ++e) {
    const auto [at, is_new] = by_class.try_emplace(holder_class(spec.layout, e), 0);
    if (is_new) at->second = group_for(spec.layout, spec.stack ? e : kWholeTensor, known);
    entry.groups.insert(entry.groups.end(), static_cast<size_t>(parts_of(spec)), at->second);
  }
}

int32_t HolderTable::group_for(const Layout& layout, int64_t index, Known& known) {
  const Mesh& mesh = layout.mesh();
  std::vector<int64_t> key = {static_cast<int64_t>(mesh.hash())};
  key.insert(key.end(), mesh.shape().begin(), mesh.shape().end());
  const bool whole = index == kWholeTensor;
  const std::vector<int> shards = whole ? layout.shard_dims() : matrix_shard_dims(layout);
  for (const std::vector<int>* dims : {&layout.replica_dims(), &layout.partial_dims(), &shards}) {
    key.push_back(-1);
    key.insert(key.end(), dims->begin(), dims->end());
  }
  key.insert(key.end(), {-1, whole ? 0 : holder_class(layout, index)});
  // If the layout assigns the whole tensor to one rank, the key includes this rank.
  if (layout.kind() == Layout::Kind::kOwner)
    key.insert(key.end(), {-2, static_cast<int64_t>(layout.hash())});
  const auto [at, is_new] = known.groups.try_emplace(std::move(key), 0);
  if (is_new)
    at->second = add_group(layout, whole ? whole_holders(layout) : holders_of(layout, index));
  return at->second;
}

int32_t HolderTable::add_group(const Layout& layout, const MatrixHolders& holders) {
  HolderGroup group;
  const std::vector<std::vector<int>>& replicas = holders.replicas;
  group.shards = static_cast<int32_t>(replicas.front().size());
  group.partial_count = static_cast<int32_t>(layout.partial_count());
  group.replicas = static_cast<int32_t>(layout.replicas() / layout.partial_count());
  // If the layout assigns the whole tensor to one rank, only this rank may own the matrix.
  // Otherwise, a rank with an empty shard may also own it.
  const bool whole = layout.kind() == Layout::Kind::kOwner;
  std::vector<int32_t> candidates;
  for (const std::vector<int>& ranks : replicas) {
    for (size_t s = 0; s < ranks.size(); ++s) {
      const int rank = ranks[s];
      group.members.push_back({rank, static_cast<int32_t>(layout.full_replica_index(rank)),
                               static_cast<int32_t>(s),
                               static_cast<int32_t>(layout.partial_index(rank))});
      group.consecutive = group.consecutive && rank == ranks[0] + static_cast<int>(s);
      if (!whole || layout.local_numel(rank) > 0) candidates.push_back(rank);
    }
  }
  group.ranks.resize(group.members.size());
  for (const Holder& h : group.members) {
    const int64_t copy = int64_t{h.replica} * group.partial_count + h.partial_index;
    group.ranks[static_cast<size_t>(copy * group.shards + h.shard)] = h.rank;
  }
  std::sort(group.members.begin(), group.members.end(),
            [](const Holder& a, const Holder& b) { return a.rank < b.rank; });
  std::sort(candidates.begin(), candidates.end());
  group.candidates = intern_candidates(std::move(candidates));
  groups_.push_back(std::move(group));
  return static_cast<int32_t>(groups_.size()) - 1;
}

int32_t HolderTable::intern_candidates(std::vector<int32_t> ranks) {
  Hash hash;
  for (const int32_t rank : ranks) hash.value(static_cast<int64_t>(rank));
  const auto [begin, end] = candidates_by_hash_.equal_range(hash.digest());
  for (auto at = begin; at != end; ++at) {
    if (candidates_[static_cast<size_t>(at->second)] == ranks) return at->second;
  }
  const auto id = static_cast<int32_t>(candidates_.size());
  candidates_.push_back(std::move(ranks));
  candidates_by_hash_.emplace(hash.digest(), id);
  return id;
}

const HolderGroup& HolderTable::group_of(int32_t layout, int64_t index) const {
  const Entry& entry = layouts_[static_cast<size_t>(layout)];
  return groups_[static_cast<size_t>(entry.groups[static_cast<size_t>(index)])];
}

const HolderGroup& HolderTable::group(int32_t param, int64_t index) const {
  return group_of(layout_of(param), index);
}

const HolderGroup& HolderTable::grad_group(int32_t param, int64_t index) const {
  return group_of(grad_layout_of_[static_cast<size_t>(param)], index);
}

const HolderGroup& HolderTable::whole_group(int32_t param) const {
  return groups_[static_cast<size_t>(layouts_[static_cast<size_t>(layout_of(param))].whole)];
}

int32_t HolderTable::kind(int32_t param, int64_t index) const {
  return layouts_[static_cast<size_t>(layout_of(param))].first_kind + static_cast<int32_t>(index);
}

int32_t HolderTable::grad_kind(int32_t param, int64_t index) const {
  const auto layout = static_cast<size_t>(grad_layout_of_[static_cast<size_t>(param)]);
  return layouts_[layout].first_kind + static_cast<int32_t>(index);
}

const std::vector<Block>& BlockTable::blocks(int32_t param, int64_t index, const Holder& holder) {
  const ParamSpec& spec = params_[static_cast<size_t>(param)];
  return find(holders_.kind(param, index), spec, spec.layout, index, holder);
}

const std::vector<Block>& BlockTable::grad_blocks(int32_t param, int64_t index,
                                                  const Holder& holder) {
  const ParamSpec& spec = params_[static_cast<size_t>(param)];
  return find(holders_.grad_kind(param, index), spec, grad_layout(spec), index, holder);
}

const std::vector<Block>& BlockTable::find(int32_t kind, const ParamSpec& spec,
                                           const Layout& layout, int64_t index,
                                           const Holder& holder) {
  const auto [at, is_new] =
      known_.try_emplace(static_cast<uint64_t>(kind) << 32 | static_cast<uint32_t>(holder.shard));
  if (is_new) {
    const int64_t parts = parts_of(spec);
    at->second = spec.stack ? blocks_of_matrix(layout, holder.rank, index / parts)
                            : blocks_of(layout, holder.rank);
    if (!spec.parts.empty()) {
      const MatrixPart& part = spec.parts[static_cast<size_t>(index % parts)];
      at->second = blocks_of_part(at->second, part.rows, part.cols);
    }
  }
  return at->second;
}

const ShardRuns& BlockTable::runs(int32_t param, int64_t index) {
  const ParamSpec& spec = params_[static_cast<size_t>(param)];
  return find_runs(holders_.kind(param, index), spec, spec.layout, index,
                   holders_.group(param, index));
}

const ShardRuns& BlockTable::grad_runs(int32_t param, int64_t index) {
  const ParamSpec& spec = params_[static_cast<size_t>(param)];
  return find_runs(holders_.grad_kind(param, index), spec, grad_layout(spec), index,
                   holders_.grad_group(param, index));
}

const ShardRuns& BlockTable::find_runs(int32_t kind, const ParamSpec& spec, const Layout& layout,
                                       int64_t index, const HolderGroup& group) {
  ShardRuns& out = runs_[static_cast<size_t>(kind)];
  if (!out.empty()) return out;
  if (spec.parts.empty()) return out = spec.stack ? shard_runs(layout, index) : shard_runs(layout);
  for (int32_t s = 0; s < group.shards; ++s) {
    int64_t numel = 0;
    for (const Block& block : find(kind, spec, layout, index, {group.rank_of(0, 0, s), 0, s}))
      numel += block.numel();
    add_shards(out, 1, numel);
  }
  return out;
}

}  // namespace muonrt
